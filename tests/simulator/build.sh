#!/usr/bin/env bash
# Builds the stand-in for the CUDA driver and, where TensorRT's headers are, the simulators of both flavours of TensorRT.
# What is up to date is left alone.
#
# usage: [CXXFLAGS=...] tests/simulator/build.sh OUT_DIR HEADERS_DIR     as tools/tensorrt_headers.sh prints it; may be empty
set -euo pipefail
out=${1:?usage: tests/simulator/build.sh OUT_DIR HEADERS_DIR}
headers=${2:-}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
read -ra extra <<<"${CXXFLAGS:--O1}"
flags=(-std=c++17 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden "${extra[@]}")

# Several test processes may come here at once.
exec 9>"$out/.lock"
flock 9

# is_current FILE: FILE is newer than every source.
is_current() {
    [ -e "$1" ] && [ -z "$(find . ../../crates/backends/src/device/kernels -newer "$1" -type f -print -quit)" ]
}

if ! is_current "$out/libcuda.so.1"; then
    c++ "${flags[@]}" driver.cpp -o "$out/partial.so"
    mv "$out/partial.so" "$out/libcuda.so.1"
fi

# simulate NAME DEFINE INCLUDE_DIR: one flavour.
simulate() {
    local library=$out/lib$1.so include=$3
    if is_current "$library"; then return; fi
    mkdir -p "$out/$1"
    python3 generate.py "$include" >"$out/$1/refusing.h"
    # The headers use what they themselves call deprecated.
    c++ "${flags[@]}" -Wno-deprecated-declarations "-D$2" -I"$out/$1" -I. -isystem "$include" -isystem ../../crates/tensorrt-rs/shim/cuda \
        plan.cpp ort.cpp engine.cpp context.cpp -ldl -o "$out/partial.so"
    mv "$out/partial.so" "$library"
}

if [ -n "$headers" ]; then
    simulate tensorrt SIMULATOR_ENTERPRISE "$headers/enterprise"
    simulate tensorrt_rtx SIMULATOR_RTX "$headers/rtx"
fi
