#!/usr/bin/env bash
# Popular queries of one log: deploy/popular.sql with two engines and `foretype popular` on three formats write the same
# bytes.
#
# usage: tests/popular/run.sh TARGET_DIR     the folder that the binary was built into, such as target/checked
#
#   POPULAR_ROWS  rows of the log (default: 20000); with a million and more, memory is bounded at 300 MiB
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=$(cd "${1:?usage: tests/popular/run.sh TARGET_DIR}" && pwd)
foretype=$target_dir/foretype
rows=${POPULAR_ROWS:-20000}
venv=${POPULAR_VENV:-$target_dir/../popular-venv}
cd "$here/../.."

# shellcheck source=tools/install.sh
. tools/install.sh
# shellcheck source=tools/venv.sh
. tools/venv.sh
# shellcheck source=tests/lib/require.sh
. tests/lib/require.sh
requirements_venv "$venv" "$here/requirements.txt"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

export PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" "$here/generate.py" "$scratch" "$rows"

# popular NAME ARGUMENT...: counts with one MiB of memory, so that counts go through files, and with the default.
popular() {
    local name=$1
    shift
    "$foretype" popular "$@" --memory-mib 1 --out "$scratch/$name.small.tsv"
    "$foretype" popular "$@" --out "$scratch/$name.tsv"
    cmp "$scratch/$name.small.tsv" "$scratch/$name.tsv"
}
popular jsonl "$scratch/log.jsonl" --count uses
popular csv "$scratch/log.csv" --query query --count uses
gzip --keep --fast "$scratch/log.tsv"
popular tsv "$scratch/log.tsv.gz" --count 2
"$venv/bin/python" "$here/engines.py" duckdb "$scratch/log.jsonl" "$scratch/duckdb.tsv"
[ "$(wc -l <"$scratch/jsonl.tsv")" -gt 300 ] || { echo "popular: the log has too few queries to compare" >&2; exit 1; }
for name in csv tsv duckdb; do
    cmp "$scratch/jsonl.tsv" "$scratch/$name.tsv"
done

if needs default-jre-headless command -v java; then
    SPARK_LOCAL_DIRS=$scratch "$venv/bin/python" "$here/engines.py" spark "$scratch/log.jsonl" "$scratch/spark.tsv"
    cmp "$scratch/jsonl.tsv" "$scratch/spark.tsv"
else
    skip "popular queries with Spark" "there is no Java"
fi

# A mistake is told, and what was there before stays.
cp "$scratch/jsonl.tsv" "$scratch/kept.tsv"
for wrong in log.parquet "log.csv --query search" "log.jsonl --count query" none.tsv; do
    # shellcheck disable=SC2086  # a file and its options
    if (cd "$scratch" && "$foretype" popular $wrong --out kept.tsv 2>>errors); then
        echo "popular: $wrong was taken" >&2
        exit 1
    fi
done
for words in "doesn't end in .tsv, .csv" 'no column "search"' 'expected a count as "query"' "can't be read"; do
    grep -qF "$words" "$scratch/errors" && continue
    echo "popular: no error says $words:" "$(cat "$scratch/errors")" >&2
    exit 1
done
cmp "$scratch/jsonl.tsv" "$scratch/kept.tsv"
[ ! -e "$scratch/kept.partial" ] || { echo "popular: a part of a file was left behind" >&2; exit 1; }

# What a bundle's build takes: every line.
"$foretype" build models/demo --popular "$scratch/jsonl.tsv" --out "$scratch/bundle" >/dev/null 2>&1
[ "$(stat -c %s "$scratch/bundle/popular.counts")" = "$((8 * $(wc -l <"$scratch/jsonl.tsv")))" ]
"$foretype" popular "$scratch/jsonl.tsv" --count 2 --out "$scratch/again.tsv" >/dev/null
cmp "$scratch/jsonl.tsv" "$scratch/again.tsv"
if [ "$rows" -ge 1000000 ]; then
    "$venv/bin/python" "$here/memory.py" 300 \
        "$foretype" popular "$scratch/log.jsonl" --count uses --out "$scratch/again.tsv"
    cmp "$scratch/jsonl.tsv" "$scratch/again.tsv"
fi
echo "popular: $(wc -l <"$scratch/jsonl.tsv") queries of $rows rows, the same from all engines"
