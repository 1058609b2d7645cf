#!/usr/bin/env bash
# What a missing accent costs. The demo's queries have no accents, so this trains a model of the demo's kind on searches for French places
# (bench/accents/corpus.py), and types 500 of its queries without their accents, with wrong ones and in other styles. The results are
# bench/results/accents.json. The training takes half an hour, and 6 GB of disk for PyTorch.
#
# usage: bench/accents.sh TARGET_DIR [FORETYPE]     the build's folder, such as target, and the binary (TARGET_DIR/release/foretype)
#
#   FORETYPE_TORCH_VENV  Python with PyTorch and transformers (default: TARGET_DIR/fine-tuning/venv, as locked)
#
# A model that is there in TARGET_DIR/accents is not trained again.
set -euo pipefail
target=$(cd "${1:?usage: bench/accents.sh TARGET_DIR [FORETYPE]}" && pwd)
binary=$(realpath "${2:-$target/release/foretype}")
command="${0#"$PWD"/} $*"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONDONTWRITEBYTECODE=1
folder=$target/accents model=$target/accents/model
package=@etalab/decoupage-administratif@6.0.0 # names and inhabitants of all communes, MIT
sha256=c189ffd5b33fe40c2f19e1a923ce557f190622f39228745d3195d746dfe00c4a
mkdir -p "$folder"

if [ ! -s "$model/model.safetensors" ]; then
    # shellcheck source=tools/install.sh
    . tools/install.sh
    # shellcheck source=tools/venv.sh
    . tools/venv.sh
    needs npm command -v npm
    archive=$folder/$(npm pack --silent --pack-destination "$folder" "$package")
    echo "$sha256  $archive" | sha256sum --check --quiet
    tar -xzf "$archive" -C "$folder" package/data/communes.json
    python3 bench/accents/corpus.py "$folder/package/data/communes.json" "$folder"
    torch_venv "$target/fine-tuning"
    "$venv/bin/python" models/demo/training/train.py --corpus "$folder/corpus" --unseen "$folder/queries/unseen.txt" --epochs 3 \
        --threads 1 --out "$model"
fi
for set in unseen seen; do
    "$binary" evaluate --model "$model" --cache "$folder/cache" --queries "$folder/queries/$set.txt" --typos 1 --method tolerant \
        --results "$folder/typos.$set"
done
python3 bench/accents.py "$folder" bench/results/accents.json "$command"
