#!/usr/bin/env bash
# Checks spelling, style and the length of sentences in the documents and in all doc comments. tools/prose/prose.py says how.
#
# usage: tools/prose.sh TARGET_DIR [FILE...]     the folder for the Python environment; without files, all of them
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=${1:?usage: tools/prose.sh TARGET_DIR [FILE...]}
shift
venv=$target_dir/prose-venv

# shellcheck source=tools/install.sh
. "$here/install.sh"
needs python3-venv python3 -c 'import ensurepip, venv'
# shellcheck source=tools/venv.sh
. "$here/venv.sh"
requirements_venv "$venv" "$here/prose/requirements.txt"
export PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" "$here/prose/test_prose.py" --quiet
"$venv/bin/python" "$here/prose/prose.py" "$@"
