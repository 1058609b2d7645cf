#!/usr/bin/env bash
# The server from outside, over the demo model: schemathesis on what /openapi.json promises, once with one model and once with
# models by name, and the official OpenAI client and plain HTTP on what people send. Then SIGTERM behind nginx, as in the container.
#
# usage: tests/e2e/run.sh TARGET_DIR     the folder that the binary was built into, such as target/checked
#
#   E2E_VENV  Python with requirements.txt (default: TARGET_DIR/../e2e-venv; made if missing)
#   E2E_SEED  which examples schemathesis makes (default: 1)
#   E2E_STOPS how often a container's entry point is stopped (default: 2)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=$(cd "${1:?usage: tests/e2e/run.sh TARGET_DIR}" && pwd)
seed=${E2E_SEED:-1}
venv=${E2E_VENV:-$target_dir/../e2e-venv}
cd "$here/../.."

# shellcheck source=tools/venv.sh
. tools/venv.sh
requirements_venv "$venv" "$here/requirements.txt"

suite=e2e
# shellcheck source=tests/lib/server.sh
. tests/lib/server.sh
start() { start_server "$target_dir/foretype" serve --port 0 --cache "$scratch/cache" "$@"; }

# check_api ARGUMENT...: everything that schemathesis can check, with the same number of examples on every machine: with a time
# limit (--max-time) it goes on until the time is spent, so that a fast machine tries more, and other, requests than a slow one.
check_api() {
    (cd "$scratch" && SCHEMATHESIS_HOOKS=hooks PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 "$venv/bin/schemathesis" run "$url/openapi.json" \
        --checks all --seed "$seed" --no-shrink --continue-on-failure --generation-database none \
        --warnings off --suppress-health-check all "$@")
}

start --model models/demo
"$venv/bin/python" "$here/clients.py" "$url"
"$venv/bin/python" "$here/neighbours.py" "$url" "$target_dir/foretype"
check_api --max-examples 150
stop_server

# Folders of models aren't made up: the two that tests may load are loaded here.
start --multi-model --kv-pool-mib 32 --prefix-cache-mib 32
"$venv/bin/python" "$here/by_name.py" "$url" "$PWD/models/demo"
check_api --max-examples 60 --include-path-regex '^/(models|v1/models|ping|metrics)'
stop_server

# shellcheck source=tools/install.sh
. tools/install.sh
needs nginx-light test -x /usr/sbin/nginx
"$venv/bin/python" "$here/stop.py" "$target_dir/foretype" "${E2E_STOPS:-2}"
echo "e2e: all is well"
