#!/usr/bin/env bash
# The engines on this machine's GPU. Says in one line that there is none, and ends well, where there is none.
#
# `test`: each engine that can run here against ONNX Runtime on the CPU, with CUDA graphs and without, and once more under
# compute-sanitizer where that is installed. `bench`: milliseconds a step by rows, and throughput, into bench/results/gpu-ENGINE/.
#
# usage: tests/gpu/run.sh test|bench TARGET_DIR
set -euo pipefail
what=${1:?usage: tests/gpu/run.sh test|bench TARGET_DIR}
target=${2:?usage: tests/gpu/run.sh test|bench TARGET_DIR}
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/require.sh
. tests/lib/require.sh

if ! gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null | head -n 1) || [ -z "$gpu" ]; then
    absent "gpu-$what" "there is no NVIDIA GPU here"
    exit 0
fi
echo "gpu-$what: $gpu"
profile=checked
if [ "$what" = bench ]; then profile=release; fi
mkdir -p "$target"
target=$(realpath "$target")
tools/setup.sh "$target/$profile"
cargo build --profile "$profile" --locked --features foretype/tensorrt --workspace --bins

# ONNX Runtime's GPU build with NVIDIA's libraries, in a Python environment of its own.
environment=$target/onnxruntime-gpu
# shellcheck source=tools/venv.sh
. tools/venv.sh
requirements_venv "$environment" tests/gpu/requirements.txt
site=$(echo "$environment"/lib/python3*/site-packages)
gpu_library=$(echo "$site"/onnxruntime/capi/libonnxruntime.so.*)
nvidia=$(find "$site/nvidia" -name lib -type d -printf '%p:')

# What can run: TensorRT where it is installed, TensorRT-RTX for the architectures that it has kernels for.
engines=(onnxruntime)
if grep -q 'libnvinfer\.so\.11' <<<"$(ldconfig -p)"; then engines+=(tensorrt); fi
case $gpu in
    *", 7.5,"* | *", 8.0,"* | *", 8.6,"* | *", 8.9,"* | *", 12.0,"* | *", 12.1,"*)
        tools/tensorrt_rtx.sh "$target/tensorrt-rtx"
        engines+=(tensorrt-rtx)
        ;;
esac

# with_engine ENGINE COMMAND...: the environment that an engine needs.
with_engine() {
    local engine=$1 variables=()
    shift
    case $engine in
        onnxruntime) variables=(LD_LIBRARY_PATH="$nvidia${LD_LIBRARY_PATH:-}" FORETYPE_ONNXRUNTIME="$gpu_library" FORETYPE_ONNXRUNTIME_GPU="$gpu_library") ;;
        tensorrt-rtx) variables=(FORETYPE_TENSORRT="$target/tensorrt-rtx") ;;
    esac
    env FORETYPE_GPU_BACKEND="$engine" "${variables[@]}" "$@"
}

tests() {
    local engine
    cargo test --profile checked --locked --features foretype/tensorrt --workspace --test suite --no-run
    for engine in "${engines[@]}"; do
        echo "gpu-test: $engine"
        with_engine "$engine" cargo test --profile checked --locked --features foretype/tensorrt --workspace --test suite \
            -- on_gpu --nocapture --test-threads 1
        if command -v compute-sanitizer >/dev/null; then
            with_engine "$engine" compute-sanitizer --error-exitcode 1 "$target/checked/foretype" complete "lithium ion" \
                --model models/demo --backend "$engine" --device cuda --cache "$target/gpu-cache"
        else
            skip "gpu-test under compute-sanitizer" "it is not installed; the CUDA toolkit has it"
        fi
    done
}

bench() {
    local engine results
    for engine in "${engines[@]}"; do
        results=bench/results/gpu-$engine
        mkdir -p "$results"
        echo "$gpu" >"$results/gpu.txt"
        [ -e "$target/bench/gpt2-random" ] || "$target/release/foretype-bench" checkpoint "$target/bench/gpt2-random" \
            --vocabulary "$(tools/gpt2_vocabulary.sh "$target/gpt2-vocabulary")"
        local common=(--gpt2 "$target/bench/gpt2-random" --cache "$target/bench/bundles-gpu" --for-gpu --results "$results")
        with_engine "$engine" "$target/release/foretype-bench" steps "${common[@]}" --backend "$engine" --device cuda
        with_engine "$engine" "$target/release/foretype-bench" load "${common[@]}" \
            --server-args "--backend $engine --device cuda --newest-first-after-ms 100000"
    done
}

case $what in
    test) tests ;;
    bench) bench ;;
    *) echo "usage: tests/gpu/run.sh test|bench TARGET_DIR" >&2 && exit 2 ;;
esac
