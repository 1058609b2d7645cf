#!/usr/bin/env bash
# Fetches NVIDIA's TensorRT-RTX (95 MB, under NVIDIA's own licence) for tests: it parses and builds on machines without a GPU.
# Puts the library and its ONNX parser into DIR. Nothing of it goes into the repository, a bundle or an image.
#
# usage: tools/tensorrt_rtx.sh DIR
set -euo pipefail

dir=${1:?usage: tools/tensorrt_rtx.sh DIR}
lock=$(realpath "$(dirname "$0")/requirements/tensorrt-rtx.txt")
VERSION=$(sed -n 's/^tensorrt-rtx-cu13-libs==\([^ ]*\).*/\1/p' "$lock")
readonly VERSION
if [ "$(cat "$dir/complete" 2>/dev/null)" = "$VERSION" ]; then exit 0; fi
if [ "$(uname -m)" != x86_64 ]; then echo "tensorrt: there is no TensorRT-RTX wheel for $(uname -m)" >&2; exit 1; fi
echo "tensorrt: fetching TensorRT-RTX $VERSION" >&2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
# The libraries inside are the same for every Python, and ask for nothing but the C and C++ libraries.
"$scratch/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --dest "$scratch" --require-hashes --requirement "$lock"
rm -rf "$dir"
mkdir -p "$dir"
python3 - "$scratch" "$dir" <<'PY'
import pathlib, shutil, sys, zipfile

scratch, target = map(pathlib.Path, sys.argv[1:])
(wheel,) = scratch.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.endswith(".so.1"):
            with archive.open(name) as source, open(target / pathlib.PurePath(name).name, "wb") as to:
                shutil.copyfileobj(source, to)
PY
echo "$VERSION" >"$dir/complete"
