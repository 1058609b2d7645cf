#!/usr/bin/env bash
# For `make parity-tensorrt`: NVIDIA's own TensorRT-RTX reads every model and builds plans, on this machine, GPU or not; then a model
# of GPT-2's shape (124M, random weights) becomes plans within the limits on time and memory. Prints a table of figures.
#
# usage: tests/parity/tensorrt.sh TARGET_DIR     with checked/foretype, checked/foretype-bench and tensorrt-rtx/ in it
set -euo pipefail
target=$(realpath "${1:?usage: tests/parity/tensorrt.sh TARGET_DIR}")
cd "$(dirname "$0")/../.."

foretype=$target/checked/foretype
dir=$target/parity-tensorrt
max_build_seconds=60
max_build_mib=4096

fail() {
    echo "parity-tensorrt: $*" >&2
    exit 1
}

export FORETYPE_TENSORRT_RTX=$target/tensorrt-rtx FORETYPE_TENSORRT=$target/tensorrt-rtx
# The shim's own tests (its symbols among them), then plans of the demo and of every golden model.
cargo test --profile checked --locked --features tensorrt-rs/shim -p tensorrt-rs
cargo test --profile checked --locked --features tensorrt -p engine-build --test suite -- plans:: 2>&1 | tee "$dir.log"
# A name that matches nothing passes too.
grep -q '^test result: ok. [1-9]' "$dir.log" || fail "no test of plans ran"

mkdir -p "$dir"
"$target/checked/foretype-bench" checkpoint "$dir/checkpoint" --vocabulary "$(tools/gpt2_vocabulary.sh "$target/gpt2-vocabulary")"
rm -rf "$dir/bundle"
"$foretype" build "$dir/checkpoint" --out "$dir/bundle" --dtype f16

table=()
for sm in 75 80,86,89; do
    python3 tests/parity/measure.py "$dir/plan.txt" "$foretype" build "$dir/bundle" --target tensorrt-rtx --sm "$sm"
    read -r seconds mib <"$dir/plan.txt"
    plan=("$dir"/bundle/engines/*-sm"${sm//,/+}".plan)
    table+=("$(printf 'plan for SM %-9s %8s s (below %s) %8s MiB resident (below %s) %8s MiB on disk' \
        "$sm" "$seconds" "$max_build_seconds" "$mib" "$max_build_mib" "$(($(stat -c %s "${plan[0]}") >> 20))")")
    awk -v seconds="$seconds" -v limit="$max_build_seconds" 'BEGIN { exit !(seconds < limit) }' ||
        fail "the plan for SM $sm took $seconds s"
    ((mib < max_build_mib)) || fail "the plan for SM $sm took $mib MiB"
done
printf '\n124M parameters, f16, prefill up to 10 x 42 and decode up to 10 x 1\n'
printf '%s\n' "${table[@]}"
