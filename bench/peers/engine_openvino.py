"""OpenVINO: its runtime with a loop in Python, and its GenAI pipeline, continuous batching over paged attention."""

import numpy
import openvino as ov

TOP_K = 50


def version():
    return f"OpenVINO {ov.__version__.split('-')[0]}"


def Engine(variant, models, threads):
    kind, precision = variant.rsplit("-", 1) if "-" in variant else ("runtime", variant)
    folder = models / "openvino" / precision
    # In f32 for int8 weights, too: it quantizes the inputs of their products by itself then. In bf16, its default where the processor
    # has AMX, 2026.4 was 2 to 4 times slower without AMX, and with AMX it ended with SIGILL on a virtual machine (Emerald Rapids).
    properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    return (GenAI if kind == "genai" else Runtime)(folder, properties)


class Runtime:
    def __init__(self, folder, properties):
        self.request = ov.Core().compile_model(folder / "openvino_model.xml", "CPU", properties).create_infer_request()

    def generate(self, rows, new_tokens):
        self.request.reset_state()
        ids = numpy.array(rows, dtype=numpy.int64)
        batch, past, made = len(ids), 0, []
        beams = numpy.arange(batch, dtype=numpy.int32)
        for _ in range(new_tokens):
            new = ids.shape[1]
            positions = numpy.ascontiguousarray(numpy.broadcast_to(numpy.arange(past, past + new), (batch, new)))
            mask = numpy.ones((batch, past + new), dtype=numpy.int64)
            inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "beam_idx": beams}
            self.request.infer(inputs, share_inputs=True)
            chosen = self.request.get_tensor("logits").data[:, -1].argmax(axis=-1)
            made.append(chosen)
            past, ids = past + new, chosen[:, None].astype(numpy.int64)
        return numpy.stack(made, axis=1).tolist()


class GenAI:
    def __init__(self, folder, properties):
        import openvino_genai as genai

        self.genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_seqs = 16
        scheduler.enable_prefix_caching = False
        self.pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)

    def config(self, new_tokens):
        config = self.genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        return config

    def run(self, rows, config):
        prompts = [ov.Tensor(numpy.array([row], dtype=numpy.int64)) for row in rows]
        return self.pipeline.generate(prompts, [config] * len(rows))

    def generate(self, rows, new_tokens):
        return [list(result.m_generation_ids[0]) for result in self.run(rows, self.config(new_tokens))]

    def candidates(self, ids, count, new_tokens):
        config = self.config(new_tokens)
        config.do_sample, config.top_k, config.num_return_sequences = True, TOP_K, count
        (result,) = self.run([ids], config)
        return [list(row) for row in result.m_generation_ids]
