#!/usr/bin/env bash
# Puts ONNX Runtime's GPU build into DIR: the library, which computes on CPUs as well, and its CUDA provider. The provider needs CUDA 13's
# cuBLAS, cuFFT, cuRAND and cuDNN 9, which are NVIDIA's and not in here.
#
# usage: tools/onnxruntime_gpu.sh DIR
set -euo pipefail

dir=${1:?usage: tools/onnxruntime_gpu.sh DIR}
lock=$(realpath "$(dirname "$0")/requirements/onnxruntime-gpu.txt")
version=$(sed -n 's/^onnxruntime-gpu==\([^ ]*\).*/\1/p' "$lock")
library=libonnxruntime.so.$version
if [ -s "$dir/libonnxruntime_providers_cuda.so" ] && [ -s "$dir/$library" ]; then exit 0; fi
if [ "$(uname -m)" != x86_64 ]; then echo "onnxruntime: there is no GPU build for $(uname -m)" >&2; exit 1; fi
echo "onnxruntime: fetching the GPU build $version" >&2
mkdir -p "$dir"
scratch=$(mktemp -d "$dir/partial.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
# The libraries inside the wheel are the same for every Python.
"$scratch/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 \
    --python-version 3.12 --dest "$scratch" --require-hashes --requirement "$lock"
python3 - "$scratch" "$dir" "$library" <<'PY'
import pathlib, shutil, sys, zipfile

scratch, target = map(pathlib.Path, sys.argv[1:3])
(wheel,) = scratch.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    for name in ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so", sys.argv[3]):
        with archive.open("onnxruntime/capi/" + name) as source, open(scratch / name, "wb") as to:
            shutil.copyfileobj(source, to)
        (scratch / name).rename(target / name)
PY
