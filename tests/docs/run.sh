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
# shellcheck source=tools/venv.sh
. "$here/../../tools/venv.sh"
requirements_venv "$venv" "$requirements"
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/run_docs.py" "$target_dir/foretype" "$@"
