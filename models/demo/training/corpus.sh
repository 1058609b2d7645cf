#!/usr/bin/env bash
# Makes the demo model's corpus in DIR: corpus/ with train.txt and valid.txt, queries/ with the lists of
# models/demo/queries. WordNet is that of the Debian package wordnet-base. Half a minute, with Debian's or Ubuntu's
# apt-get and dpkg (no root) and Python 3.11 or later.
#
# usage: models/demo/training/corpus.sh DIR
set -euo pipefail
dir=${1:?usage: models/demo/training/corpus.sh DIR}
training=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$dir/wordnet"
dir=$(cd "$dir" && pwd)
(
    cd "$dir/wordnet"
    rm -f wordnet-base_*.deb
    apt-get download wordnet-base
    dpkg -x wordnet-base_*.deb .
) >&2
python3 "$training/corpus.py" --wordnet "$dir/wordnet/usr/share/wordnet" --corpus "$dir/corpus" --queries "$dir/queries"
