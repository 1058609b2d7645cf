#!/usr/bin/env bash
# Rebuilds the demo model from its sources: WordNet from the Debian package wordnet-base, and
# topics.txt. Replaces the files in models/demo only once everything has succeeded.
# Needs Debian's or Ubuntu's apt-get and dpkg (no root), Python 3.11 or later, and about 8 GB of
# disk for PyTorch. Takes about 40 minutes on two busy cores.
#
# WORK: folder for everything temporary (default: a new one, removed at the end; give one to
# keep the Python environment and the corpus for another run).
set -euo pipefail

training=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
demo=$(dirname "$training")
export PYTHONDONTWRITEBYTECODE=1

if [[ -z ${WORK:-} ]]; then
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT
fi
mkdir -p "$WORK"
WORK=$(cd "$WORK" && pwd)

# shellcheck source=tools/venv.sh
. "$training/../../../tools/venv.sh"
requirements_venv "$WORK/venv" "$training/requirements.txt"

"$training/corpus.sh" "$WORK"
"$WORK/venv/bin/python" "$training/train.py" --corpus "$WORK/corpus" \
    --unseen "$WORK/queries/heldout_unseen.txt" --out "$WORK/checkpoint"

mkdir -p "$demo/queries"
install -m 644 "$WORK"/queries/* "$demo/queries/"
install -m 644 "$WORK"/checkpoint/* "$demo/"
