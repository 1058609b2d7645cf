#!/usr/bin/env bash
# The server from outside, over the demo model: schemathesis on what /openapi.json promises, once with one model and once with
# models by name, and the official OpenAI client and plain HTTP on what people send.
#
# usage: tests/e2e/run.sh TARGET_DIR     the folder that the binary was built into, such as target/checked
#
#   E2E_VENV  Python with requirements.txt (default: TARGET_DIR/../e2e-venv; made if missing)
#   E2E_SEED  which examples schemathesis makes (default: 1)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=$(cd "${1:?usage: tests/e2e/run.sh TARGET_DIR}" && pwd)
seed=${E2E_SEED:-1}
venv=${E2E_VENV:-$target_dir/../e2e-venv}
cd "$here/../.."

# installed.txt tells a complete environment from one whose installation was interrupted, or is of other versions.
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
    cp "$here/requirements.txt" "$venv/installed.txt"
fi

scratch=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap finish EXIT

# start ARGUMENT...: starts a server and sets $url when it is ready.
start() {
    # What the server before it wrote must be gone before this looks: the background process may be slow to open the file.
    : >"$scratch/out"
    "$target_dir/foretype" serve --port 0 --cache "$scratch/cache" "$@" >"$scratch/out" 2>"$scratch/log" &
    server=$!
    for _ in $(seq 600); do
        url=$(sed -nE 's/^foretype is ready on (http:[^ ,]*[0-9]).*/\1/p' "$scratch/out")
        [ -z "$url" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "e2e: the server did not start:" >&2
    cat "$scratch/log" >&2
    exit 1
}

# stop: ends the server, which must be alive still and end well.
stop() {
    if ! kill "$server" || ! wait "$server"; then
        echo "e2e: the server ended badly:" >&2
        tail -20 "$scratch/log" >&2
        exit 1
    fi
    server=
}

# check_api ARGUMENT...: everything that schemathesis can check, with the same number of examples on every machine: with a time
# limit (--max-time) it goes on until the time is spent, so that a fast machine tries more, and other, requests than a slow one.
check_api() {
    (cd "$scratch" && SCHEMATHESIS_HOOKS=hooks PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 "$venv/bin/schemathesis" run "$url/openapi.json" \
        --checks all --seed "$seed" --no-shrink --continue-on-failure --generation-database none \
        --warnings off --suppress-health-check all "$@")
}

start --model models/demo
"$venv/bin/python" "$here/clients.py" "$url"
check_api --max-examples 150
stop

# Folders of models aren't made up: the two that tests may load are loaded here.
start --multi-model --kv-pool-mib 32 --prefix-cache-mib 32
"$venv/bin/python" "$here/by_name.py" "$url" "$PWD/models/demo"
check_api --max-examples 60 --include-path-regex '^/(models|v1/models|ping|metrics)'
stop
echo "e2e: all is well"
