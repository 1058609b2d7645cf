"""llama.cpp's model files, in full precision and with 8-bit blocks. usage: CHECKPOINT OUT"""

import sys
from pathlib import Path

import gguf
import numpy

from checkpoint import Checkpoint

source, out = Checkpoint(sys.argv[1]), Path(sys.argv[2])
NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
OUTSIDE = {"wte.weight": "token_embd.weight", "wpe.weight": "position_embd.weight"}
OUTSIDE |= {f"ln_f.{part}": f"output_norm.{part}" for part in ("weight", "bias")}


def tensors():
    """llama.cpp's names, and matrices as it wants them, [out, in]."""
    for name, array in source.weights().items():
        if name in OUTSIDE:
            yield OUTSIDE[name], array
        elif name.startswith("h.") and (rest := name.split(".", 2))[2].rsplit(".", 1)[0] in NAMES:
            stem, part = rest[2].rsplit(".", 1)
            matrix = array.ndim == 2
            yield f"blk.{rest[1]}.{NAMES[stem]}.{part}", numpy.ascontiguousarray(array.T) if matrix else array


def write(path, quantization):
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(source.layers)
    writer.add_context_length(source.positions)
    writer.add_embedding_length(source.hidden)
    writer.add_feed_forward_length(4 * source.hidden)
    writer.add_head_count(source.heads)
    writer.add_layer_norm_eps(source.epsilon)
    pieces, merges = source.vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(pieces))
    writer.add_token_merges(merges)
    end = source.config.get("eos_token_id", len(pieces) - 1)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
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
