#!/usr/bin/env bash
# For `make parity-tensorrt`: NVIDIA's own TensorRT-RTX reads every model and builds plans, on this machine, GPU or not. A model of
# GPT-2's shape (124M, random weights) becomes plans within the limits on time and memory, in f16, int8 and int4; so does every golden
# model in f16 and int4. The figures go to bench/results/tensorrt-plans.txt.
#
# usage: tests/parity/tensorrt.sh TARGET_DIR     with checked/foretype, checked/foretype-bench and tensorrt-rtx/ in it
# PLANS_ONLY=1 leaves out the tests, PLANS=FILE names another file.
set -euo pipefail
target=$(realpath "${1:?usage: tests/parity/tensorrt.sh TARGET_DIR}")
cd "$(dirname "$0")/../.."

foretype=$target/checked/foretype
dir=$target/parity-tensorrt
results=${PLANS:-bench/results/tensorrt-plans.txt}
# Of one architecture. Usually 7 to 9 s; a processor without AVX-512 whose other thread is busy needed 10.1 s.
max_cpu_seconds=20
max_build_mib=4096
# Every architecture that the instances of docs/deploy.md have, and TensorRT-RTX has kernels for.
architectures=(75 80 86 89 120)
all=$(IFS=,; echo "${architectures[*]}")

fail() {
    echo "parity-tensorrt: $*" >&2
    exit 1
}

export FORETYPE_TENSORRT_RTX=$target/tensorrt-rtx FORETYPE_TENSORRT=$target/tensorrt-rtx FORETYPE_LOG=error
mkdir -p "$dir"
if [[ -z ${PLANS_ONLY:-} ]]; then
    # The shim's own tests (its symbols among them), then plans of the demo and of every golden model.
    cargo test --profile checked --locked --features foretype/tensorrt --workspace --test suite -- shim:: plans:: 2>&1 | tee "$dir.log"
    # A name that matches nothing passes too. Plans are in the server's suite and in engine-build's, the shim is in tensorrt-rs'.
    (($(grep -c '^test result: ok. [1-9]' "$dir.log") == 3)) || fail "the shim's tests or those of plans did not run"
fi
echo "wireless charger" >"$dir/texts.txt"

table=()
# A plan of BUNDLE for the architectures SM, as a row that begins with NAME.
plan() {
    local name=$1 bundle=$2 sm=$3 seconds mib cpu layers file
    rm -rf "$bundle/engines"
    python3 tests/parity/measure.py "$dir/plan.txt" "$foretype" plan "$bundle" --for "$sm" >"$dir/plan.log"
    read -r seconds mib cpu <"$dir/plan.txt"
    file=("$bundle"/engines/*-sm"${sm//,/+}".plan)
    layers=$(python3 tests/parity/plan_layers.py "${file[0]}")
    table+=("$(printf '%-34s %-15s %8.1f %8.1f %7d %9.1f   %s' "$name" "$sm" "$cpu" "$seconds" "$mib" \
        "$(awk -v bytes="$(stat -c %s "${file[0]}")" 'BEGIN { print bytes / 1048576 }')" "$layers")")
    printf '%s\n' "${table[-1]}"
    last_cpu=$cpu last_mib=$mib
}

"$target/checked/foretype-bench" checkpoint "$dir/checkpoint" --vocabulary "$(tools/gpt2_vocabulary.sh "$target/gpt2-vocabulary")"
for form in "f16, context 128:" "f16, context 1024:--context 1024" "int8, context 128:--quantize int8" \
    "int4, context 128:--quantize int4" "f16, attention in f32:--f32-attention"; do
    name=${form%%:*} flags=${form#*:}
    # Random weights say nothing about quality; one text keeps their comparison short.
    [[ $flags == --quantize* ]] && flags+=" --force --quality-texts $dir/texts.txt"
    # shellcheck disable=SC2086 # several words
    "$foretype" build "$dir/checkpoint" --out "$dir/bundle" --for gpu $flags >/dev/null
    targets=("$all")
    [[ -z $flags ]] && targets=("${architectures[@]}" "$all")
    # TensorRT-RTX multiplies no f32 matrices on SM75, and has no int4 there.
    [[ $flags == --f32-attention || $flags == *int4* ]] && targets=("${all#75,}")
    for sm in "${targets[@]}"; do
        plan "GPT-2 124M, $name" "$dir/bundle" "$sm"
        awk -v seconds="$last_cpu" -v limit="$max_cpu_seconds" -v count="$(tr ',' '\n' <<<"$sm" | wc -l)" \
            'BEGIN { exit !(seconds < limit * count) }' || fail "the plan for SM $sm took $last_cpu s of CPU time"
        ((last_mib < max_build_mib)) || fail "the plan for SM $sm took $last_mib MiB"
    done
done

for checkpoint in models/demo tests/goldens/*/ tests/goldens/t5/*/; do
    checkpoint=${checkpoint%/}
    [[ -f $checkpoint/config.json ]] || continue
    # TensorRT-RTX 1.7.1 crashes below a hidden size of 32.
    width=$(python3 -c 'import json, sys; c = json.load(open(sys.argv[1])); print(next(c[n] for n in ("n_embd", "hidden_size", "d_model") if n in c))' \
        "$checkpoint/config.json")
    ((width >= 32)) || continue
    for form in f16 int4; do
        flags=() sm=$all
        if [[ $checkpoint == */t5/* ]]; then
            [[ $form == f16 ]] || continue
            sm=${all#75,}
        fi
        [[ $form == int4 ]] && sm=${all#75,} flags=(--quantize int4 --block 32 --force --quality-texts "$dir/texts.txt")
        "$foretype" build "$checkpoint" --out "$dir/golden" --for gpu "${flags[@]}" >/dev/null
        plan "${checkpoint#tests/}, $form" "$dir/golden" "$sm"
    done
done

{
    echo "# Plans of TensorRT-RTX, built without a GPU: up to 10 rows of 42 tokens, and of one token. $(lscpu | sed -n 's/^Model name: *//p')"
    echo "# commit $(git rev-parse --short=12 HEAD), \`make parity-tensorrt\`. Not run: there was no GPU. Times are of a busy machine."
    echo "# Kernels are those of both profiles; fused attention is a kernel that multiplies, normalizes and sums, by profile and layer."
    printf '%-34s %-15s %8s %8s %7s %9s   %s\n' model SM "CPU s" "wall s" "MiB RAM" "plan MiB" "kernels, fused attention"
    printf '%s\n' "${table[@]}"
} >"$results"
cat "$results"
