#!/usr/bin/env bash
# Fine-tunes SmolLM2-135M on the demo model's corpus, into DIR/fine-tuned-model, and prints that folder. Neither the
# queries of models/demo/queries/heldout_unseen.txt nor the corpus's validation split are trained on. Two hours on two
# cores, with the default of 100 minutes of training; 4 GB of memory, and 6 GB of disk for PyTorch. What is there is
# left alone.
#
# usage: tools/fine_tune.sh DIR [ARGUMENT...]     for fine_tune.py, such as --minutes 60 --threads 1 --seed 20, or on a
#                                                 GPU --device cuda --minutes 2 --rows 16 --rate 5e-4
#
#   FORETYPE_TORCH_VENV  Python with PyTorch and transformers (default: DIR/fine-tuning/venv, as locked)
#
# DIR/fine-tuning keeps the corpus and the environment.
set -euo pipefail
dir=${1:?usage: tools/fine_tune.sh DIR [ARGUMENT...]}
shift
mkdir -p "$dir"
dir=$(realpath "$dir")
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1
if [ ! -s "$dir/fine-tuned-model/model.safetensors" ]; then
    model=$(tools/real_model.sh "$dir/real-model")
    work=$dir/fine-tuning
    mkdir -p "$work"
    # shellcheck source=tools/venv.sh
    . tools/venv.sh
    torch_venv "$work"
    models/demo/training/corpus.sh "$work" >&2
    # The corpus decides which queries are held out: another WordNet would mix them.
    cmp "$work/queries/heldout_unseen.txt" models/demo/queries/heldout_unseen.txt >&2
    "$venv/bin/python" tools/fine_tune.py "$model" "$work/corpus/train.txt" "$dir/fine-tuned-model" \
        --measure models/demo/queries/heldout_unseen.txt --measure models/demo/queries/seen.txt "$@" >&2
fi
echo "$dir/fine-tuned-model"
