#!/usr/bin/env bash
# Runs the commands that the documents show, against a server with the demo model.
#
# usage: tests/docs/run.sh TARGET_DIR [DOCUMENT...]     the folder that the binary was built into, such as target/checked
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=$(cd "${1:?usage: tests/docs/run.sh TARGET_DIR [DOCUMENT...]}" && pwd)
shift
venv=$target_dir/../docs-venv
requirements=$here/../../deploy/requirements.txt

# shellcheck source=tools/install.sh
. "$here/../../tools/install.sh"
needs curl command -v curl
# installed.txt tells a complete environment from one whose installation was interrupted, or is of other versions.
if ! cmp -s "$requirements" "$venv/installed.txt"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements"
    cp "$requirements" "$venv/installed.txt"
fi
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/run_docs.py" "$target_dir/foretype" "$@"
