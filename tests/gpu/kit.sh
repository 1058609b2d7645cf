#!/usr/bin/env bash
# The kit's script: every check and measurement that this machine allows, on each engine that it has, as one table (kit.txt) and JSON
# (kit.json) with the GPU's name. It needs bash, coreutils and this folder; for a GPU also NVIDIA's driver, and CUDA 13's libraries for ONNX
# Runtime. It uses no network. Where python3 has PyTorch and transformers, these are measured as well. What is not run is a row that says why.
#
# usage: ./run.sh [RESULTS_DIR]     default: gpu-kit-results in the working folder; ends with 1 if a check fails
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$(mkdir -p "${1:-gpu-kit-results}" && cd "${1:-gpu-kit-results}" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
FORETYPE_COMMIT=$(cat "$here/commit")
export FORETYPE_COMMIT FORETYPE_REPOSITORY=$here FORETYPE_CACHE=$scratch/cache FORETYPE_LOG=warn
checks=$scratch/checks.tsv
failed=''

# outcome ENGINE NAME WORDS...: a row of the table.
outcome() {
    local engine=$1 name=$2
    shift 2
    printf '%s\t%s\t%s\n' "$engine" "$name" "$*" >>"$checks"
    printf 'kit: %s: %s: %s\n' "$engine" "$name" "$*"
    case $* in failed*) failed=1 ;; esac
}

# ---- what there is
gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null | head -n 1) || gpu=''
engines=(cpu)
declare -A absent=()
if [ -z "$gpu" ]; then
    for engine in onnxruntime tensorrt tensorrt-rtx; do absent[$engine]='there is no NVIDIA GPU'; done
else
    echo "kit: $gpu"
    # folder_of LIBRARY...: of the first that is found, where the loader, CUDA or Python packages have it.
    folder_of() {
        local name
        for name in "$@"; do
            find / -xdev -name "$name" -not -path '/proc/*' -printf '%h\n' 2>/dev/null | head -n 1
        done
    }
    for library in libcublas.so.13 libcublasLt.so.13 libcudnn.so.9 libcufft.so.12 libcurand.so.10 libcudart.so.13 libnvrtc.so.13 libnvJitLink.so.13; do
        folder=$(folder_of "$library")
        case :${LD_LIBRARY_PATH:-}: in *":$folder:"*) ;; *) export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder ;; esac
        if [ -z "$folder" ] && [ "$library" != libnvrtc.so.13 ]; then absent[onnxruntime]="$library is not on this machine"; fi
    done
    [ -n "${absent[onnxruntime]:-}" ] || engines+=(onnxruntime)
    folder=$(folder_of 'libnvinfer.so.11')
    if [ -n "$folder" ]; then export FORETYPE_TENSORRT=$folder; engines+=(tensorrt); else absent[tensorrt]='libnvinfer.so.11 is not on this machine'; fi
    folder=$(folder_of 'libtensorrt_rtx.so.1')
    case $gpu in
        *", 7.5,"* | *", 8.0,"* | *", 8.6,"* | *", 8.9,"* | *", 12.0,"* | *", 12.1,"*)
            if [ -n "$folder" ]; then engines+=(tensorrt-rtx); else absent[tensorrt-rtx]='libtensorrt_rtx.so.1 is not on this machine'; fi ;;
        *) absent[tensorrt-rtx]='TensorRT-RTX has no kernels for this GPU' ;;
    esac
    rtx=$folder
fi

# with_engine ENGINE COMMAND...
with_engine() {
    local engine=$1
    shift
    if [ "$engine" = tensorrt-rtx ]; then set -- env "FORETYPE_TENSORRT=$rtx" "$@"; fi
    FORETYPE_GPU_BACKEND=$engine "$@"
}

# ---- checks
listed=$("$here/bin/suite" on_gpu --list)
mapfile -t tests < <(sed -n 's/^on_gpu::\(.*\): test$/\1/p' <<<"$listed")
[ "${#tests[@]}" != 0 ] || { echo "kit: bin/suite has no GPU tests: the kit was packed with another program" >&2; exit 1; }
for engine in "${engines[@]}"; do
    for name in "${tests[@]}"; do
        skipped=$scratch/skipped log=$results/$engine-$name.log
        rm -f "$skipped"
        status=0
        FORETYPE_SKIPPED=$skipped with_engine "$engine" timeout 600 "$here/bin/suite" --exact "on_gpu::$name" --nocapture >"$log" 2>&1 || status=$?
        said=$(sed -n 's/^on_gpu: //p' "$log" | paste -sd ';')
        if [ "$status" != 0 ]; then
            outcome "$engine" "$name" "failed with status $status, see ${log##*/}"
        elif [ -s "$skipped" ] && [ -z "$said" ]; then
            outcome "$engine" "$name" "not run: $(paste -sd ';' "$skipped")"
        else
            outcome "$engine" "$name" "passed${said:+; $said}"
        fi
    done
    if [ "$engine" = cpu ]; then continue; fi
    if command -v compute-sanitizer >/dev/null; then
        log=$results/$engine-compute-sanitizer.log
        if with_engine "$engine" timeout 300 compute-sanitizer --error-exitcode 1 "$here/bin/foretype" complete "lithium ion" \
            --model "$here/bundles/demo" --backend "$engine" --device cuda >"$log" 2>&1; then
            outcome "$engine" compute-sanitizer passed
        else
            outcome "$engine" compute-sanitizer "failed, see ${log##*/}"
        fi
    else
        outcome "$engine" compute-sanitizer 'not run: compute-sanitizer is not installed'
    fi
done
for engine in onnxruntime tensorrt tensorrt-rtx; do
    [ -z "${absent[$engine]:-}" ] || outcome "$engine" 'checks and measurements' "not run: ${absent[$engine]}"
done

# ---- measurements, after the checks so that these are not lost with them
measure=(--for-gpu --demo "$here/bundles/demo" --queries "$here/models/demo/queries/heldout_unseen.txt" --cache "$scratch/cache" --results "$results")
if [ -z "$gpu" ]; then
    # Enough to see that it works.
    measure+=(--engines cpu --models demo --rows "1,4,10" --past "10,40" --rounds 5 --clients "1,4" --people "1,8" --seconds 3)
else
    "$here/bin/foretype-bench" checkpoint "$scratch/gpt2" --vocabulary "$here/vocabulary" >/dev/null
    if rows=$(timeout 120 python3 "$here/pytorch.py" "$scratch/gpt2" 2>"$results/pytorch.log"); then
        while IFS=$'\t' read -r engine name words; do outcome "$engine" "$name" "$words"; done <<<"$rows"
    else
        outcome pytorch 'ten continuations of 42 tokens' 'not run: python3 has no PyTorch and transformers for this GPU, see pytorch.log'
    fi
    measured=$(IFS=,; echo "${engines[*]:1}")
    measure+=(--engines "$measured" --models "demo,gpt2" --gpt2 "$scratch/gpt2")
fi
"$here/bin/foretype-bench" kit "${measure[@]}" --checks "$checks" || failed=1
rm -rf "$results/tmp"
echo "kit: the results are in $results"
[ -z "$failed" ]
