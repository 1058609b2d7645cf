#!/usr/bin/env bash
# Makes the golden checkpoints anew, for `make goldens`. With the pinned versions `git diff` shows no change.
#
#   GOLDENS_VENV  Python with transformers (default: target/goldens-venv; made if missing, about 6 GB on Linux)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

venv=${GOLDENS_VENV:-target/goldens-venv}
# installed.txt tells a complete environment from one whose installation was interrupted.
if [[ ! -f $venv/installed.txt ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
    "$venv/bin/pip" freeze >"$venv/installed.txt"
fi
"$venv/bin/python" "$here/make_goldens.py"
