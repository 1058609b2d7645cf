#!/usr/bin/env bash
# Brings what a build needs and a bare Debian machine may lack: C and C++ compilers, Python's venv, TensorRT's headers, and the ONNX
# Runtime library, put beside the binary. Safe to run again: what is there is left alone.
#
# usage: tools/setup.sh TARGET_DIR     the folder that the binary is built into, such as target/release
set -euo pipefail

target_dir=${1:?usage: tools/setup.sh TARGET_DIR}
cd "$(dirname "$0")/.."
ONNXRUNTIME_VERSION=$(sed -n 's/^onnxruntime==\([^ ]*\).*/\1/p' tools/requirements/onnxruntime.txt)
readonly ONNXRUNTIME_VERSION

say() { printf 'setup: %s\n' "$*" >&2; }

# shellcheck source=tools/install.sh
. tools/install.sh
needs gcc cc --version
needs g++ c++ --version
needs libc6-dev test -e /usr/include/stdio.h
needs python3 python3 --version
needs python3-venv python3 -c 'import ensurepip, venv'
command -v cargo >/dev/null || { say "the Rust toolchain is missing; install it with rustup, as its web site says"; exit 1; }

tools/tensorrt_headers.sh "${CARGO_TARGET_DIR:-target}/tensorrt-headers"

library=libonnxruntime.so.$ONNXRUNTIME_VERSION
if [ ! -s "$target_dir/$library" ]; then
    say "fetching ONNX Runtime $ONNXRUNTIME_VERSION"
    case $(uname -m) in
        x86_64) platform=manylinux_2_28_x86_64 ;;
        aarch64) platform=manylinux_2_28_aarch64 ;;
        *) say "there is no ONNX Runtime wheel for $(uname -m)"; exit 1 ;;
    esac
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m venv "$scratch/venv"
    # The library inside the wheel is the same for every Python; naming one makes the choice independent of the machine's.
    "$scratch/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --platform "$platform" --python-version 3.12 --dest "$scratch" --require-hashes --requirement tools/requirements/onnxruntime.txt
    mkdir -p "$target_dir"
    python3 - "$scratch" "$target_dir/$library" <<'PY'
import pathlib, sys, zipfile

scratch, library = map(pathlib.Path, sys.argv[1:])
(wheel,) = scratch.glob("*.whl")
partial = library.with_name("partial." + library.name)
with zipfile.ZipFile(wheel) as archive:
    partial.write_bytes(archive.read("onnxruntime/capi/" + library.name))
partial.rename(library)
PY
fi
