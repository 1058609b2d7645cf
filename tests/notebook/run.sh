#!/usr/bin/env bash
# Runs deploy/foretype.ipynb without AWS or Docker: see check.py.
#
# usage: tests/notebook/run.sh TARGET_DIR     the folder that the binary was built into, such as target/checked
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=$(cd "${1:?usage: tests/notebook/run.sh TARGET_DIR}" && pwd)
cd "$here/../.."

# shellcheck source=tests/lib/require.sh
. tests/lib/require.sh
# shellcheck source=tools/venv.sh
. tools/venv.sh
venv=${NOTEBOOK_VENV:-$target_dir/../notebook-venv}
requirements_venv "$venv" "$here/requirements.txt"
# PyTorch would be 5 GB more.
[ -n "${FORETYPE_TORCH_VENV:-}" ] || absent "notebook: training" "FORETYPE_TORCH_VENV names no environment with PyTorch; the demo's checkpoint is used"
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/check.py" "$target_dir/foretype"
