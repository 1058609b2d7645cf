"""llama.cpp through the low level of its Python binding: all rows share each step."""

import llama_cpp
import numpy

FILES = {"fp32": "f32.gguf", "q8_0": "q8_0.gguf"}
ROWS, TOKENS, TOP_K = 10, 512, 50


def version():
    return f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"


class Engine:
    def __init__(self, variant, models, threads):
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.n_gpu_layers = 0
        path = str(models / "gguf" / FILES[variant]).encode()
        self.model = llama_cpp.llama_model_load_from_file(path, model)
        self.threads, self.context, self.known = threads, None, []
        self.batch = llama_cpp.llama_batch_init(TOKENS, 0, 1)
        self.vocabulary_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        llama_cpp.llama_sampler_chain_add(self.sampler, llama_cpp.llama_sampler_init_top_k(TOP_K))
        llama_cpp.llama_sampler_chain_add(self.sampler, llama_cpp.llama_sampler_init_dist(1))

    def open(self, unified):
        """The context; with one memory for all rows, a row takes over what another has without copying it."""
        if self.context is None:
            context = llama_cpp.llama_context_default_params()
            context.n_ctx, context.n_seq_max = ROWS * 256, ROWS
            context.n_batch = context.n_ubatch = TOKENS
            context.n_threads = context.n_threads_batch = self.threads
            context.kv_unified = unified
            self.context = llama_cpp.llama_init_from_model(self.model, context)
        return llama_cpp.llama_get_memory(self.context)

    def decode(self, rows, past):
        """Adds tokens to each row; where the batch has the last one of each."""
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
        return last

    def best(self, at):
        logits = llama_cpp.llama_get_logits_ith(self.context, at)
        return int(numpy.ctypeslib.as_array(logits, shape=(self.vocabulary_size,)).argmax())

    def generate(self, rows, new_tokens):
        """Greedily, everything computed anew."""
        llama_cpp.llama_memory_clear(self.open(unified=False), True)
        made, past, rows = [[] for _ in rows], 0, list(rows)
        for _ in range(new_tokens):
            chosen = [self.best(at) for at in self.decode(rows, past)]
            past += len(rows[0])
            rows = [[token] for token in chosen]
            for row, token in zip(made, chosen, strict=True):
                row.append(token)
        return made

    def candidates(self, ids, count, new_tokens):
        """Sampled, with the prompt cache of llama.cpp's server: what the prompt before this one began with, too, is known."""
        memory = self.open(unified=True)
        same = zip(ids[:-1], self.known, strict=False)
        known = next((at for at, (now, before) in enumerate(same) if now != before), min(len(ids) - 1, len(self.known)))
        llama_cpp.llama_memory_seq_rm(memory, 0, known, -1)
        (last,) = self.decode([ids[known:]], known)
        self.known = list(ids)
        for row in range(1, count):
            llama_cpp.llama_memory_seq_cp(memory, 0, row, -1, -1)
        made, last, past = [[] for _ in range(count)], [last] * count, len(ids)
        for _ in range(new_tokens):
            rows = [[llama_cpp.llama_sampler_sample(self.sampler, self.context, at)] for at in last]
            for row, (token,) in zip(made, rows, strict=True):
                row.append(token)
            if len(made[0]) < new_tokens:
                last = self.decode(rows, past)
                past += 1
        for row in range(count):
            llama_cpp.llama_memory_seq_rm(memory, row, len(ids) if row == 0 else -1, -1)
        return made
