#!/usr/bin/env bash
# Builds the demo model and every golden, and has ONNX's own checker and shape inference look at the graphs.
#
# usage: tools/check_graphs.sh TARGET_DIR     the target folder with checked/foretype in it
set -euo pipefail
target=${1:?usage: tools/check_graphs.sh TARGET_DIR}
cd "$(dirname "$0")/.."

venv=$target/onnx-venv
# shellcheck source=tools/venv.sh
. tools/venv.sh
requirements_venv "$venv" engine-build/tests/requirements.txt
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for config in models/demo/config.json tests/goldens/*/config.json; do
    checkpoint=$(dirname "$config")
    build() {
        "$target/checked/foretype" build "$checkpoint" --out "$scratch/$(basename "$checkpoint")-$1" "${@:2}" >/dev/null 2>&1
    }
    build f32 --operators onnx
    build f16 --dtype f16
    build fused --operators foretype
    build int8 --quantize int8 --force
done
"$venv/bin/python" engine-build/tests/check_onnx.py "$scratch"/*
