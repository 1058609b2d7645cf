#!/usr/bin/env bash
# What brings foretype to SageMaker, without AWS, Docker or the binary: the program `deploy` against a stand-in with AWS's constraints
# and against moto, the CloudFormation template, the manifests of deploy/kubernetes, build_and_push.sh with programs that only note what they are asked, nginx/serve with a
# real nginx, the locks of Python requirements, and the SBOM.
#
# usage: tests/deploy/run.sh TARGET_DIR [pytest arguments]
set -euo pipefail

target=$(mkdir -p "${1:?usage: tests/deploy/run.sh TARGET_DIR}" && realpath "$1")
shift
cd "$(dirname "$0")/../.."

# shellcheck source=tools/install.sh
. tools/install.sh
needs python3-venv python3 -c 'import ensurepip, venv'
needs nginx-light test -x /usr/sbin/nginx
needs kubernetes-client command -v kubectl
# shellcheck source=tests/lib/require.sh
. tests/lib/require.sh
left_out=()
if ! kubectl kustomize deploy/kubernetes/overlays/cpu-keda >/dev/null 2>&1; then
    skip "deploy/kubernetes" "this kubectl can't build an overlay with components; install 1.27 or a later one"
    left_out=(--ignore tests/deploy/test_kubernetes.py)
fi
# shellcheck source=tools/venv.sh
. tools/venv.sh
venv=${DEPLOY_VENV:-$target/deploy-venv}
requirements_venv "$venv" tests/deploy/requirements.txt

PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/deploy "${left_out[@]}" "$@"

# The list of what the binary is made of, twice: the same commit gives the same bytes.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
CARGO_TARGET_DIR=$target tools/sbom.sh "$scratch/first.json"
CARGO_TARGET_DIR=$target tools/sbom.sh "$scratch/second.json"
cmp "$scratch/first.json" "$scratch/second.json"
"$venv/bin/python" - "$scratch/first.json" <<'PY'
import json, sys

bill = json.load(open(sys.argv[1]))
names = {component["name"] for component in bill["components"]}
assert {"onnxruntime", "actix-web", "foretype-scheduler"} <= names, names
assert "awc" not in names, "the commands that a container has no use for are in it"
assert all("licenses" in component for component in bill["components"])
PY
echo "deploy: all is well"
