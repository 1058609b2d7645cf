#!/usr/bin/env bash
# Brings what a build needs and a bare Debian machine may lack: C and C++ compilers, Python's venv, TensorRT's headers, and the ONNX
# Runtime library, put beside the binary. Safe to run again: what is there is left alone.
#
# usage: tools/setup.sh TARGET_DIR     the folder that the binary is built into, such as target/release
set -euo pipefail

readonly ONNXRUNTIME_VERSION=1.31.1
target_dir=${1:?usage: tools/setup.sh TARGET_DIR}
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# apt_install COMMAND... PACKAGE: installs PACKAGE if any COMMAND fails.
needs_package() {
    local package=$1
    shift
    if "$@" >/dev/null 2>&1; then return; fi
    command -v apt-get >/dev/null || { say "$package is missing; install it and run this again"; exit 1; }
    say "installing $package"
    [ -n "${apt_updated:-}" ] || as_root apt-get update -qq
    apt_updated=1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
}

needs_package gcc cc --version
needs_package g++ c++ --version
needs_package libc6-dev test -e /usr/include/stdio.h
needs_package python3 python3 --version
needs_package python3-venv python3 -c 'import ensurepip, venv'
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
        --platform "$platform" --python-version 3.12 --dest "$scratch" "onnxruntime==$ONNXRUNTIME_VERSION"
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
