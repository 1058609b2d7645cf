#!/usr/bin/env bash
# Counts the instructions of the hot paths with callgrind and compares them with what they were, so that the speed of the machine
# doesn't matter. Two runs of different lengths are subtracted: start-up doesn't count. The threads of the HTTP path wake each other
# in another order in each run, which only adds instructions. So a path above its bound is counted again, and its lowest count holds.
#
# usage: bench/check.sh BENCH_PROGRAM [--renew]     BENCH_PROGRAM is foretype-bench; --renew writes bench/check.txt anew
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:?usage: bench/check.sh BENCH_PROGRAM [--renew]}
renew=${2:-}
bounds=bench/check.txt
# By how much a path may grow, in percent. A path that shrank by as much is told, and its bound should be renewed.
readonly tolerance=10
# How often a path is counted at most.
readonly tries=5

say() { printf 'bench-check: %s\n' "$*"; }

# shellcheck source=tools/install.sh
. tools/install.sh
needs valgrind command -v valgrind
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

instructions() {
    valgrind --tool=callgrind --callgrind-out-file="$scratch/out" "$program" hot "$1" --times "$2" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2; say "$1 failed" >&2; exit 1; }
    sed -n 's/^summary: //p; s/^totals: //p' "$scratch/out" | tail -n 1
}

per_time() {
    local path=$1 few=$2 many=$3 low high
    low=$(instructions "$path" "$few")
    high=$(instructions "$path" "$many")
    echo $(((high - low) / (many - few)))
}

passed=0 failed=0
measured="# Instructions of one request over HTTP, and of typing 17 keys whose searches are all in the tree; bench/check.sh --renew."
for path in http replay; do
    case $path in
        http) few=200 many=1200 ;;
        replay) few=3 many=13 ;;
    esac
    bound=$(sed -n "s/^$path //p" "$bounds")
    [ -n "$bound" ] || [ "$renew" = --renew ] || { say "there is no bound of $path in $bounds; write it with --renew"; exit 1; }
    count=$(per_time "$path" "$few" "$many")
    for ((try = 1; try < tries; try++)); do
        [ "$renew" = --renew ] || [ $((count * 100)) -gt $((bound * (100 + tolerance))) ] || break
        again=$(per_time "$path" "$few" "$many")
        [ "$again" -ge "$count" ] || count=$again
    done
    measured+=$'\n'"$path $count"
    [ "$renew" != --renew ] || continue
    percent=$(((count - bound) * 100 / bound))
    if [ "$percent" -gt "$tolerance" ]; then
        say "$path: $count instructions, $percent % above its bound $bound"
        failed=$((failed + 1))
    else
        say "$path: $count instructions, bound $bound ($percent %)"
        [ "$percent" -ge "-$tolerance" ] || say "$path shrank: make bench-check RENEW=--renew keeps it there"
        passed=$((passed + 1))
    fi
done
if [ "$renew" = --renew ]; then
    printf '%s\n' "$measured" >"$bounds"
    cat "$bounds"
    exit 0
fi
say "$passed passed, $failed failed"
[ "$failed" = 0 ]
