#!/usr/bin/env bash
# Makes the golden checkpoints anew, for `make goldens`. With the pinned versions `git diff` shows no change.
#
#   GOLDENS_VENV  Python with transformers (default: target/goldens-venv; made if missing, about 6 GB on Linux)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

venv=${GOLDENS_VENV:-target/goldens-venv}
# An environment that is there is taken as it is: it may be a lent one.
# shellcheck source=tools/venv.sh
. tools/venv.sh
[[ -f $venv/installed.txt ]] || requirements_venv "$venv" "$here/requirements.txt"
"$venv/bin/python" "$here/make_goldens.py"
"$venv/bin/python" "$here/generation.py"
"$venv/bin/python" "$here/make_adapters.py"
"$venv/bin/python" "$here/make_tokenizers.py"
