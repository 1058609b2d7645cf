#!/usr/bin/env bash
# Runs every fuzz target for a while, from the seeds in fuzz/corpus and the inputs of earlier runs in fuzz/corpus.tar.gz, and adds its
# processor time and its inputs to those of earlier runs in bench/results/fuzz.txt. What the fuzzer adds to the corpus stays in TARGET_DIR.
# Ends with an error if a target found something; the input is in fuzz/artifacts then. If it is interrupted, the targets that have ended
# are added.
#
# usage: [FUZZ_JOBS=N] tools/fuzz.sh SECONDS TARGET_DIR     N targets at a time, as many as cores if not said
#        tools/fuzz.sh pack TARGET_DIR                      packs the inputs that reach all that was reached into fuzz/corpus.tar.gz
#
# With a nightly toolchain the address sanitizer watches, too; stable needs none and fuzzes without it.
set -euo pipefail
seconds=${1:?usage: tools/fuzz.sh SECONDS|pack TARGET_DIR}
mkdir -p "${2:?usage: tools/fuzz.sh SECONDS|pack TARGET_DIR}/fuzz"
target_dir=$(cd "$2/fuzz" && pwd)
cd "$(dirname "$0")/.."

if ! command -v cargo-fuzz >/dev/null; then
    cargo install cargo-fuzz --locked --quiet
fi
if grep -q '^nightly' <<<"$(rustup toolchain list 2>/dev/null)"; then
    fuzz=(cargo +nightly fuzz)
    options=()
else
    fuzz=(cargo fuzz)
    options=(--sanitizer none)
fi
options+=(--target-dir "$target_dir" --fuzz-dir fuzz)

if [ ! -d "$target_dir/corpus" ] && [ -e fuzz/corpus.tar.gz ]; then
    mkdir "$target_dir/corpus"
    tar -C "$target_dir/corpus" -xzf fuzz/corpus.tar.gz
fi
"${fuzz[@]}" build "${options[@]}"
# A timeout is in seconds of the wall clock, so it has room for a busy machine.
limits=(-timeout=30 -rss_limit_mb=2048)
host=$(rustc -vV | sed -n 's/^host: //p')
report=bench/results/fuzz.txt
[ -e "$report" ] || touch "$report"

# before NAME COLUMN: what the report says of a target from earlier runs, or 0.
before() { awk -v name="$1" -v column="$2" '$1 == name { print $column; found = 1 } END { if (!found) print 0 }' "$report"; }

# fuzz_target NAME: fuzzes one target and leaves a line for the report beside its log.
fuzz_target() {
    local target=$1 outcome=clean corpus=$target_dir/corpus/$1 dictionary=(-dict=fuzz/json.dict) TIMEFORMAT='%U %S'
    local log=$target_dir/$1.log times=$target_dir/$1.times minutes executions
    mkdir -p "$corpus" "fuzz/artifacts/$target"
    if [ "$target" = tokenizer_input ]; then dictionary=(); fi
    # A text for the tokenizer is cut at 200 characters; nothing else needs long inputs to be broken. The program is started without cargo,
    # which would build it anew when a source changes meanwhile.
    { time ASAN_OPTIONS=detect_odr_violation=0 "$target_dir/$host/release/$target" "$corpus" "fuzz/corpus/$target" "${dictionary[@]}" \
        -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -max_len=8192 "${limits[@]}" \
        -print_final_stats=1 >"$log" 2>&1; } 2>"$times" || outcome="FAILED, see $target.log"
    minutes=$(awk -v before="$(before "$target" 2)" 'END { printf "%.1f", before + ($1 + $2) / 60 }' "$times")
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '%-18s %12s %12s %8s  %s\n' "$target" "$minutes" "$(($(before "$target" 3) + ${executions:-0}))" \
        "$(find "$corpus" -type f | wc -l)" "$outcome" >"$target_dir/$target.row"
}

# Packs the fewest inputs of each target that reach all that its corpus reaches.
pack_corpus() {
    local kept=$target_dir/kept target
    rm -rf "$kept"
    for target in "${targets[@]}"; do
        mkdir -p "$kept/$target"
        ASAN_OPTIONS=detect_odr_violation=0 "$target_dir/$host/release/$target" -set_cover_merge=1 "${limits[@]}" \
            "$kept/$target" "fuzz/corpus/$target" "$target_dir/corpus/$target" >"$target_dir/$target.pack.log" 2>&1
    done
    tar -C "$kept" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - . | gzip -9n >fuzz/corpus.tar.gz
}

# Writes the report: the rows of the targets that have ended, and the earlier rows of the others.
write_report() {
    {
        printf 'All runs together, the last one of commit %s\n\n' "$commit"
        printf '%-18s %12s %12s %8s  %s\n' target cpu-minutes inputs corpus outcome
        for target in "${targets[@]}"; do
            cat "$target_dir/$target.row" 2>/dev/null || awk -v name="$target" '$1 == name' "$report"
        done
    } >"$target_dir/report"
    mv "$target_dir/report" "$report"
    cat "$report"
}

commit=$(git rev-parse --short=12 HEAD)
mapfile -t targets < <("${fuzz[@]}" list --fuzz-dir fuzz)
if [ "$seconds" = pack ]; then
    pack_corpus
    exit
fi
for target in "${targets[@]}"; do rm -f "$target_dir/$target.row"; done
trap write_report EXIT
jobs=${FUZZ_JOBS:-$(nproc)}
running=0
for target in "${targets[@]}"; do
    fuzz_target "$target" &
    running=$((running + 1))
    if [ "$running" -ge "$jobs" ]; then
        wait -n
        running=$((running - 1))
    fi
done
wait
! grep -q FAILED "$target_dir"/*.row
