"""Writes a random checkpoint of GPT-J's shape in f16, shard by shard, with nothing but the standard library.

    make_large.py FOLDER [--layers 29] [--hidden 2816] ...

The defaults are 3.0 billion parameters, 6 GB. Only one block of random bytes is made: tensors are runs of it from places
of their own, so that they differ, and memory stays small. The tokenizer is bytes without merges.
"""

import argparse
import json
import random
import struct
from pathlib import Path

BLOCK_BYTES = 8 << 20
SHARD_BYTES = 1 << 30


def tensors(args: argparse.Namespace) -> list[tuple[str, list[int]]]:
    """Names and shapes, in the order of the model."""
    hidden, vocab, inner = args.hidden, args.vocab, 4 * args.hidden
    found = [("transformer.wte.weight", [vocab, hidden])]
    for layer in range(args.layers):
        name = f"transformer.h.{layer}."
        found += [(f"{name}ln_1.{part}", [hidden]) for part in ("weight", "bias")]
        found += [(f"{name}attn.{part}_proj.weight", [hidden, hidden]) for part in ("q", "k", "v", "out")]
        found += [(f"{name}mlp.fc_in.weight", [inner, hidden]), (f"{name}mlp.fc_in.bias", [inner])]
        found += [(f"{name}mlp.fc_out.weight", [hidden, inner]), (f"{name}mlp.fc_out.bias", [hidden])]
    found += [(f"transformer.ln_f.{part}", [hidden]) for part in ("weight", "bias")]
    return found + [("lm_head.weight", [vocab, hidden]), ("lm_head.bias", [vocab])]


def size_bytes(shape: list[int]) -> int:
    """In f16."""
    count = 2
    for size in shape:
        count *= size
    return count


def random_block(seed: int) -> bytes:
    """f16 numbers of about 0.004 to 0.03, of either sign: exponents 7 to 9, random mantissas."""
    rng = random.Random(seed)
    raw = bytearray(rng.randbytes(BLOCK_BYTES))
    exponents = bytes((byte & 0x83) | (7 + byte % 3) << 2 for byte in range(256))
    raw[1::2] = raw[1::2].translate(exponents)
    return bytes(raw)


def write_tensor(file, block: bytes, start: int, count: int) -> None:
    """`count` bytes of the endless repetition of `block`, from `start` on."""
    while count > 0:
        piece = memoryview(block)[start : start + count]
        file.write(piece)
        count -= len(piece)
        start = 0


def write_shard(path: Path, members: list[tuple[str, list[int]]], block: bytes, rng: random.Random) -> None:
    """One safetensors file."""
    header, offset = {}, 0
    for name, shape in members:
        end = offset + size_bytes(shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for _, shape in members:
            write_tensor(file, block, 2 * rng.randrange(BLOCK_BYTES // 2), size_bytes(shape))


def shards(found: list[tuple[str, list[int]]]) -> list[list[tuple[str, list[int]]]]:
    """Runs of tensors of at most SHARD_BYTES, or of one tensor."""
    runs, filled = [[]], 0
    for name, shape in found:
        if runs[-1] and filled + size_bytes(shape) > SHARD_BYTES:
            runs.append([])
            filled = 0
        runs[-1].append((name, shape))
        filled += size_bytes(shape)
    return runs


def tokenizer() -> dict:
    """GPT-2's kind with the 256 bytes and the end of text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    end = "<|endoftext|>"
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {letter: i for i, letter in enumerate(letters)} | {end: 256}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 256, "content": end} | added],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def main() -> None:
    """Writes the folder and prints how many parameters it has."""
    parser = argparse.ArgumentParser(description="Writes a large random checkpoint of GPT-J's shape.")
    parser.add_argument("folder", type=Path)
    for name, default in {"layers": 29, "hidden": 2816, "heads": 11, "rotary": 64, "vocab": 50400}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    args.folder.mkdir(parents=True)

    found = tensors(args)
    block, rng, weight_map = random_block(3), random.Random(3), {}
    runs = shards(found)
    for number, members in enumerate(runs, 1):
        name = f"model-{number:05}-of-{len(runs):05}.safetensors"
        write_shard(args.folder / name, members, block, rng)
        weight_map |= {tensor: name for tensor, _ in members}
    total = sum(size_bytes(shape) for _, shape in found)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    config = {
        "architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_embd": args.hidden, "n_head": args.heads,
        "n_layer": args.layers, "n_positions": 2048, "rotary_dim": args.rotary, "vocab_size": args.vocab,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False,
        "bos_token_id": 256, "eos_token_id": 256,
    }  # fmt: skip
    for name, content in {
        "model.safetensors.index.json": index, "config.json": config, "tokenizer.json": tokenizer()
    }.items():  # fmt: skip
        (args.folder / name).write_text(json.dumps(content))
    print(f"{total // 2}")


if __name__ == "__main__":
    main()
