"""llama.cpp's model files, in full precision and with 8-bit blocks. usage: CHECKPOINT OUT"""

import sys
from pathlib import Path

import gguf
import numpy

from checkpoint import Checkpoint

source, out = Checkpoint(sys.argv[1]), Path(sys.argv[2])
GPT2_LAYER = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
GPT2_OUTSIDE = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
LLAMA_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA_OUTSIDE = {"embed_tokens": "token_embd", "norm": "output_norm"}


def in_pairs(matrix, heads):
    """The rows of each head with the two of a pair side by side: a checkpoint has the first ones of all pairs first."""
    halves = matrix.reshape(heads, 2, -1, matrix.shape[1])
    return numpy.ascontiguousarray(halves.swapaxes(1, 2).reshape(matrix.shape))


def gpt2_matrix(name, array):
    return numpy.ascontiguousarray(array.T) if array.ndim == 2 else array


def llama_matrix(name, array):
    heads = {"self_attn.q_proj": source.heads, "self_attn.k_proj": source.config["num_key_value_heads"]}
    return in_pairs(array, heads[name]) if name in heads else array


def tensors():
    """llama.cpp's names, and matrices as it wants them, [out, in]."""
    layers, layer_names = ("layers.", LLAMA_LAYER) if source.is_llama else ("h.", GPT2_LAYER)
    outside, as_wanted = (LLAMA_OUTSIDE, llama_matrix) if source.is_llama else (GPT2_OUTSIDE, gpt2_matrix)
    for name, array in source.weights().items():
        stem, _, part = name.rpartition(".")
        if stem in outside:
            yield f"{outside[stem]}.{part}", array
        elif name.startswith(layers):
            layer, _, stem = stem.removeprefix(layers).partition(".")
            if stem in layer_names:
                yield f"blk.{layer}.{layer_names[stem]}.{part}", as_wanted(stem, array)


def add_shape(writer):
    writer.add_block_count(source.layers)
    writer.add_context_length(source.positions)
    writer.add_embedding_length(source.hidden)
    writer.add_head_count(source.heads)
    if source.is_llama:
        writer.add_feed_forward_length(source.config["intermediate_size"])
        writer.add_head_count_kv(source.config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(source.epsilon)
        writer.add_rope_dimension_count(source.head_dim)
        writer.add_rope_freq_base(source.config["rope_theta"])
        writer.add_vocab_size(source.vocabulary_size)
    else:
        writer.add_feed_forward_length(4 * source.hidden)
        writer.add_layer_norm_eps(source.epsilon)


def add_vocabulary(writer):
    pieces, merges = source.vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if source.is_llama else "gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(pieces))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(source.end)
    writer.add_eos_token_id(source.end)


def write(path, quantization):
    writer = gguf.GGUFWriter(path, "llama" if source.is_llama else "gpt2")
    add_shape(writer)
    add_vocabulary(writer)
    for name, array in tensors():
        kind = gguf.GGMLQuantizationType.F32
        if quantization and array.ndim == 2 and name != "position_embd.weight":
            kind = gguf.GGMLQuantizationType.Q8_0
            array = gguf.quants.quantize(array, kind)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


write(out / "f32.gguf", False)
write(out / "q8_0.gguf", True)
