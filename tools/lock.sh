#!/usr/bin/env bash
# Writes the locks of all Python requirements anew: of each NAME.in a NAME.txt with every package's version and hashes, for Python 3.11
# and later on any platform. Scripts install only from these, with `pip install --require-hashes`. To raise a version, change it in
# NAME.in and run this; to raise the versions of what that depends on, too, run it with --upgrade.
#
# usage: tools/lock.sh [--check] [--upgrade] [NAME.in...]     --check: only says whether the locks are those of the .in files
set -euo pipefail
cd "$(dirname "$0")/.."

check='' options=() names=()
for word in "$@"; do
    case $word in
        --check) check=1 ;;
        --upgrade) options+=(--upgrade) ;;
        *.in) names+=("$word") ;;
        *) sed -n '6s/^# //p' "$0" >&2; exit 2 ;;
    esac
done
[ "${#names[@]}" -gt 0 ] || mapfile -t names < <(git ls-files '*requirements.in' '*requirements/*.in')

venv=${LOCK_VENV:-${CARGO_TARGET_DIR:-target}/lock-venv}
# shellcheck source=tools/venv.sh
. tools/venv.sh
requirements_venv "$venv" tools/requirements/uv.txt

status=0
for name in "${names[@]}"; do
    lock=${name%.in}.txt
    # A package that is fetched for what is inside comes alone.
    case $name in tools/requirements/onnxruntime.in | tools/requirements/tensorrt-rtx.in | tools/requirements/gpt2-vocabulary.in | tools/requirements/smollm2.in | tools/requirements/libclang.in | tools/requirements/cuda-kernels.in | tools/requirements/onnxruntime-gpu.in) alone=--no-deps ;; *) alone= ;; esac
    made=$(mktemp)
    if [ -s "$lock" ]; then cp "$lock" "$made"; fi
    # No index is written down: where packages come from is the machine's matter, what they are is in the hashes.
    "$venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
        --no-annotate --custom-compile-command tools/lock.sh ${alone:+"$alone"} ${options[@]+"${options[@]}"} --output-file "$made" "$name" >/dev/null
    if [ -z "$check" ]; then
        cat "$made" >"$lock"
    elif ! cmp -s "$made" "$lock"; then
        echo "lock: $lock isn't the lock of $name; run tools/lock.sh" >&2
        status=1
    fi
    rm -f "$made"
done
exit "$status"
