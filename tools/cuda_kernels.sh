#!/usr/bin/env bash
# Compiles crates/backends/src/device/kernels/*.cu to PTX beside them, with NVIDIA's compiler library from Python packages, which needs no
# GPU. The driver compiles the PTX for its GPU when the program starts. It is of CUDA 12.0 and SM 75, the oldest that serve. NVIDIA's
# assembler then shows that the PTX can be compiled for newer GPUs, too.
#
# usage: tools/cuda_kernels.sh TARGET_DIR [--check]     --check: only says whether the PTX is that of the source
set -euo pipefail
target=$(mkdir -p "${1:?usage: tools/cuda_kernels.sh TARGET_DIR [--check]}" && realpath "$1")
check=${2:-}
cd "$(dirname "$0")/.."

venv=$target/cuda-kernels-venv
# shellcheck source=tools/venv.sh
. tools/venv.sh
requirements_venv "$venv" tools/requirements/cuda-kernels.txt
nvidia=$(echo "$venv"/lib/python3*/site-packages/nvidia)

for source in crates/backends/src/device/kernels/*.cu; do
    made=$(mktemp)
    python3 - "$nvidia/cuda_nvrtc/lib/libnvrtc.so.12" "$source" "$made" <<'PY'
import ctypes, pathlib, sys

library, source, made = sys.argv[1:]
nvrtc, program, size = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_size_t()
text, name = pathlib.Path(source).read_bytes(), pathlib.Path(source).name.encode()
options = (ctypes.c_char_p * 2)(b"--gpu-architecture=compute_75", b"--std=c++17")
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None) == 0
status = nvrtc.nvrtcCompileProgram(program, len(options), options)
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
if status != 0 or log.value:
    sys.exit(f"{source}: {log.value.decode()}")
assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
ptx = ctypes.create_string_buffer(size.value)
assert nvrtc.nvrtcGetPTX(program, ptx) == 0
# The compiler's own tables of architectures, which nothing uses.
lines = [line for line in ptx.value.splitlines(keepends=True) if b"nv6target" not in line]
pathlib.Path(made).write_bytes(b"".join(lines))
PY
    for sm in 75 80 86 89 90 100 120; do
        "$nvidia/cuda_nvcc/bin/ptxas" "--gpu-name=sm_$sm" --output-file=/dev/null "$made"
    done
    ptx=${source%.cu}.ptx
    if [ -z "$check" ]; then
        cat "$made" >"$ptx"
    elif ! cmp -s "$made" "$ptx"; then
        echo "cuda_kernels: $ptx isn't the PTX of $source; run tools/cuda_kernels.sh" >&2
        exit 1
    fi
    rm -f "$made"
done
