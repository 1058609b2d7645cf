#!/usr/bin/env bash
# Types queries with errors and in other styles at foretype and at other programs that complete queries, and compares their lists.
# Installs those programs. The results are bench/results/mistyped.json, with bootstrap intervals.
#
# usage: bench/mistyped.sh TARGET_DIR [FORETYPE]     the build's folder, such as target, and the binary (TARGET_DIR/release/foretype)
#
#   LIMIT   queries of each set (500)
#   SEED    of the errors (1)
#   REUSE   any word: the lists of foretype are there already, and only the other programs are measured again
set -euo pipefail

target_dir=$(cd "${1:?usage: bench/mistyped.sh TARGET_DIR [FORETYPE]}" && pwd)
binary=$(realpath "${2:-$target_dir/release/foretype}")
command="${0#"$PWD"/} $*"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
queries=models/demo/queries folder=$target_dir/mistyped
seed=${SEED:-1}

# shellcheck source=tools/install.sh
. tools/install.sh
# shellcheck source=tools/venv.sh
. tools/venv.sh
# Without Groonga its rows are left out, and the result says so.
needs groonga-bin command -v groonga-suggest-create-dataset || true
plugins=(/usr/lib/*/groonga/plugins/suggest/suggest.so)
[ -e "${plugins[0]}" ] || apt_install groonga-plugin-suggest || true
requirements_venv "$folder/venv" bench/peers/requirements/mistyped.txt

if [ -z "${REUSE:-}" ]; then
    "$binary" evaluate --model models/demo --cache "$folder/cache" --typos "$seed" --limit "${LIMIT:-500}" --results "$folder" \
        --method exact,tolerant,merged,popular-tolerant --popular "$queries/popular.tsv" \
        --queries "$queries/heldout_unseen.txt,$queries/seen.txt"
fi

suite=mistyped
# shellcheck source=tests/lib/server.sh
. tests/lib/server.sh
start_server "$binary" serve --model models/demo --port 0 --cache "$folder/cache"
"$folder/venv/bin/python" bench/peers/mistyped.py "$folder/evaluate-typos.jsonl" bench/results/mistyped.json \
    --popular "$queries/popular.tsv" --server "$url" --command "$command"
stop_server
