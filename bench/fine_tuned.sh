#!/usr/bin/env bash
# What fine-tuning brings: the demo model, SmolLM2 as it is, and SmolLM2 fine-tuned (`make fine-tuned-model`) complete
# the same queries, typed key by key. The loss of each is measured on all queries, the lists on some. The results are
# bench/results/fine-tuned.json.
#
# usage: bench/fine_tuned.sh TARGET_DIR [FORETYPE]     the build's folder, such as target, and the binary
#                                                      (TARGET_DIR/release/foretype)
#
#   LIMIT                queries of each set that are typed (100), at even distances
#   TYPOS                queries of each set that the fine-tuned model gets with errors and in other styles (500)
#   PRECISIONS           int8, none or both, which is the default: "int8 none"
#   THREADS              of everything here (2)
#   FORETYPE_TORCH_VENV  as for tools/fine_tune.sh
#
# What is there in TARGET_DIR/fine-tuned is left alone: delete that to measure again.
set -euo pipefail
command="LIMIT=${LIMIT:-100} TYPOS=${TYPOS:-500} PRECISIONS='${PRECISIONS:-int8 none}' THREADS=${THREADS:-2} ${0#"$PWD"/} $*"
target=$(cd "${1:?usage: bench/fine_tuned.sh TARGET_DIR [FORETYPE]}" && pwd)
binary=$(realpath "${2:-$target/release/foretype}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONDONTWRITEBYTECODE=1
queries=models/demo/queries folder=$target/fine-tuned
limit=${LIMIT:-100} threads=${THREADS:-2}
declare -A models=([demo]=models/demo [smollm2]=$target/real-model [fine-tuned]=$target/fine-tuned-model)
mkdir -p "$folder"

for precision in ${PRECISIONS:-int8 none}; do
    for name in demo fine-tuned smollm2; do
        out=$folder/$name.$precision
        [ ! -s "$out/evaluate.txt" ] || continue
        "$binary" evaluate --model "${models[$name]}" --quantize "$precision" --cache "$folder/cache" --threads "$threads" \
            --queries "$queries/heldout_unseen.txt,$queries/seen.txt" --limit "$limit" --method exact --cold 0 \
            --results "$out"
    done
done
for set in heldout_unseen seen; do
    out=$folder/typos.$set
    [ ! -s "$out/evaluate-typos.txt" ] || continue
    "$binary" evaluate --model "${models[fine-tuned]}" --quantize int8 --cache "$folder/cache" --threads "$threads" \
        --queries "$queries/$set.txt" --limit "${TYPOS:-500}" --typos 1 --method tolerant --results "$out"
done
# The losses of the others are in what the fine-tuning measured. Without a minute of training this measures only.
if [ ! -s "$folder/demo/measured.json" ]; then
    # shellcheck source=tools/venv.sh
    . tools/venv.sh
    torch_venv "$target/fine-tuning"
    "$venv/bin/python" tools/fine_tune.py models/demo /dev/null "$folder/demo" \
        --minutes 0 --threads "$threads" --measure "$queries/heldout_unseen.txt" --measure "$queries/seen.txt"
fi
python3 bench/fine_tuned.py "$folder" "$target/fine-tuned-model/measured.json" bench/results/fine-tuned.json "$command"
