"""ONNX Runtime with a loop in Python: the standard export with past, and its fused operators."""

import numpy
import onnxruntime

from checkpoint import Checkpoint

FILES = {
    "standard-fp32": "onnx/model.onnx",
    "standard-int8": "ort/standard-int8.onnx",
    "fused-int8": "ort/fused-int8.onnx",
}


def version():
    return f"ONNX Runtime {onnxruntime.__version__}"


class Engine:
    def __init__(self, variant, models, threads):
        source = Checkpoint((models / "checkpoint.txt").read_text().strip())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(models / FILES[variant]), options, ["CPUExecutionProvider"])
        self.fused = variant.startswith("fused")
        self.outputs = [output.name for output in self.session.get_outputs()]
        known = {"input_ids", "position_ids", "attention_mask"}
        self.pasts = [value.name for value in self.session.get_inputs() if value.name not in known]
        self.known = known & {value.name for value in self.session.get_inputs()}
        self.heads, self.head_dim = source.heads, source.head_dim
        self.random = numpy.random.default_rng(1)

    def steps(self, rows, new_tokens, choose):
        ids = numpy.array(rows, dtype=numpy.int64)
        batch = len(ids)
        shape = (2, batch, self.heads, 0, self.head_dim) if self.fused else (batch, self.heads, 0, self.head_dim)
        empty = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.zeros(shape, dtype=numpy.float32))
        state = dict.fromkeys(self.pasts, empty)
        past, made = 0, []
        mask_type = numpy.int32 if self.fused else numpy.int64
        for _ in range(new_tokens):
            new = ids.shape[1]
            positions = numpy.broadcast_to(numpy.arange(past, past + new), (batch, new))
            fed = {
                "input_ids": ids,
                "position_ids": numpy.ascontiguousarray(positions),
                "attention_mask": numpy.ones((batch, past + new), dtype=mask_type),
            }
            fed = {name: onnxruntime.OrtValue.ortvalue_from_numpy(fed[name]) for name in self.known}
            # What a step leaves is what the next one is given, without a copy.
            logits, *state = self.session.run_with_ort_values(self.outputs, fed | state)
            state = dict(zip(self.pasts, state, strict=True))
            logits = logits.numpy()
            chosen = choose(logits if logits.ndim == 2 else logits[:, -1])
            made.append(chosen)
            past, ids = past + new, chosen[:, None].astype(numpy.int64)
        return numpy.stack(made, axis=1).tolist()

    def generate(self, rows, new_tokens):
        return self.steps(rows, new_tokens, lambda logits: logits.argmax(axis=-1))

    def candidates(self, ids, count, new_tokens):
        return self.steps([ids] * count, new_tokens, self.sample)

    def sample(self, logits, top_k=50):
        """From the 50 best, as transformers does by default."""
        top = numpy.argpartition(logits, -top_k, axis=-1)[:, -top_k:]
        # The largest of logit plus Gumbel noise is a draw from the softmax.
        noisy = numpy.take_along_axis(logits, top, axis=-1) + self.random.gumbel(size=top.shape)
        return numpy.take_along_axis(top, noisy.argmax(axis=-1)[:, None], axis=-1)[:, 0]
