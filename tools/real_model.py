"""Turns the GGUF file of a Llama into a checkpoint as transformers saves it, with weights in f32.

usage: real_model.py FILE.gguf FOLDER

GGUF has the tokens and merges of the tokenizer, but not its pre-tokenizer. That is rebuilt here as the model's original
file has it: it splits digits one by one, then applies GPT-2's pattern. The weights are those of 4 and 8 bits, as exact
f32 values.
"""

import json
import pathlib
import sys

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def tokenizer(field):
    """tokenizer.json, with the byte-level pre-tokenizer behind a stage that splits digits."""
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": id, "content": tokens[id], **flags} for id, kind in enumerate(kinds) if kind == 3],
        "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_only],
        },
        "decoder": bytes_only,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<|endoftext|>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": field("tokenizer.ggml.merges"),
        },
    }


def config(field):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"), "vocab_size": field("llama.vocab_size"),
        "max_position_embeddings": field("llama.context_length"), "rope_theta": field("llama.rope.freq_base"),
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 9), "tie_word_embeddings": True,
        # Texts are apart by token 0 in pretraining. The file names the tokens around the messages of a chat, which a
        # query isn't: after them the perplexity of 20 queries is 391 instead of 155.
        "bos_token_id": 0, "eos_token_id": [0, field("tokenizer.ggml.eos_token_id")],
    }


def in_halves(matrix, heads):
    """The rows of each head as transformers turns them, the first ones of all pairs first: GGUF has pairs."""
    pairs = matrix.reshape(heads, -1, 2, matrix.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(matrix.shape))


def weights(reader, field):
    heads = {"attn_q": field("llama.attention.head_count"), "attn_k": field("llama.attention.head_count_kv")}
    named = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in OUTSIDE:
            named[OUTSIDE[tensor.name]] = values
            continue
        _, layer, part, _ = tensor.name.split(".")
        values = in_halves(values, heads[part]) if part in heads else values
        named[f"model.layers.{layer}.{LAYER[part]}.weight"] = values
    return named


def main():
    file, folder = map(pathlib.Path, sys.argv[1:])
    reader = GGUFReader(file)
    field = lambda name: reader.fields[name].contents()
    (folder / "config.json").write_text(json.dumps(config(field), indent=2) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(field), ensure_ascii=False))
    # Last and at once: where this file is, the checkpoint is whole.
    partial = folder / "model.partial"
    save_file(weights(reader, field), partial, metadata={"format": "pt"})
    partial.rename(folder / "model.safetensors")


main()
