#!/usr/bin/env bash
# For `make parity-prompts`: SmolLM2-135M continues 200 prompts of several lines, and every token is compared with
# transformers'.
#
# usage: tests/parity/prompts.sh TARGET_DIR     with checked/foretype in it
#
#   PARITY_VENV  Python with transformers, needed only while there is no reference (default: DIR/venv)
#
# Prompts and reference are kept in TARGET_DIR/parity-prompts: delete that to make them anew. A reference that was
# stopped goes on where it was. The figures go to bench/results/parity-prompts.txt.
set -euo pipefail
target=$(realpath "${1:?usage: tests/parity/prompts.sh TARGET_DIR}")
cd "$(dirname "$0")/../.."

dir=$target/parity-prompts
mkdir -p "$dir"
model=$(tools/real_model.sh "$target/real-model")
[[ -s $dir/prompts.json ]] || python3 tests/parity/prompts.py draw "$dir/prompts.json"
touch "$dir/reference.jsonl"
if (($(wc -l <"$dir/reference.jsonl") < 200)); then
    venv=${PARITY_VENV:-$dir/venv}
    # An environment that is there is taken as it is: it may be a lent one.
    # shellcheck source=tools/venv.sh
    . tools/venv.sh
    [[ -f $venv/installed.txt ]] || requirements_venv "$venv" tests/parity/requirements.txt
    "$venv/bin/python" tests/parity/prompts.py reference "$model" "$dir/prompts.json" "$dir/reference.jsonl"
fi
rm -rf "$dir/bundle"
"$target/checked/foretype" build "$model" --out "$dir/bundle" --context 512
FORETYPE_PARITY_DIR=$dir cargo test --profile checked --locked --features foretype/tensorrt --workspace --test suite \
    -- parity::transformers_prompts --exact --ignored --nocapture | tee "$dir/test.txt"
# A name that matches nothing passes too.
grep -q '^test result: ok. 1 passed' "$dir/test.txt"

processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
{
    echo "SmolLM2-135M in f32 against transformers; commit $(git rev-parse --short=12 HEAD), ${processor:-$(uname -m)}"
    # With --nocapture the first line a test prints follows "test NAME ... ".
    sed -nE 's/^(test [^ ]+ \.\.\. )?parity: (.*) = (.*)$/\2\t\3/p' "$dir/test.txt" |
        while IFS=$'\t' read -r name value; do printf '%-64s %s\n' "$name" "$value"; done
} >bench/results/parity-prompts.txt
cat bench/results/parity-prompts.txt
