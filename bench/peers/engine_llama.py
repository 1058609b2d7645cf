"""llama.cpp through the low level of its Python binding: all rows share each step."""

import llama_cpp
import numpy

FILES = {"fp32": "f32.gguf", "q8_0": "q8_0.gguf"}
ROWS, TOKENS = 10, 512


def version():
    return f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"


class Engine:
    def __init__(self, variant, models, threads):
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.n_gpu_layers = 0
        path = str(models / "gguf" / FILES[variant]).encode()
        self.model = llama_cpp.llama_model_load_from_file(path, model)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_seq_max = ROWS * 256, ROWS
        context.n_batch = context.n_ubatch = TOKENS
        context.n_threads = context.n_threads_batch = threads
        if hasattr(context, "kv_unified"):
            context.kv_unified = False
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.batch = llama_cpp.llama_batch_init(TOKENS, 0, 1)
        self.vocabulary_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, rows, past):
        """Adds tokens to each row; the best next token of each."""
        last, count = [], 0
        for row, tokens in enumerate(rows):
            for offset, token in enumerate(tokens):
                self.batch.token[count] = token
                self.batch.pos[count] = past + offset
                self.batch.n_seq_id[count] = 1
                self.batch.seq_id[count][0] = row
                self.batch.logits[count] = offset + 1 == len(tokens)
                count += 1
            last.append(count - 1)
        self.batch.n_tokens = count
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")

        def best(at):
            logits = llama_cpp.llama_get_logits_ith(self.context, at)
            return int(numpy.ctypeslib.as_array(logits, shape=(self.vocabulary_size,)).argmax())

        return [best(at) for at in last]

    def generate(self, rows, new_tokens):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        made, past, rows = [[] for _ in rows], 0, list(rows)
        for _ in range(new_tokens):
            chosen = self.decode(rows, past)
            past += len(rows[0])
            rows = [[token] for token in chosen]
            for row, token in zip(made, chosen, strict=True):
                row.append(token)
        return made
