# shellcheck shell=bash
# For `source`: starts and stops servers for a suite. The suite's name is $suite; what the server writes is in $scratch.

scratch=$(mktemp -d)
server=

finish_servers() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap finish_servers EXIT

# start_server COMMAND...: starts a server and sets $url when it is ready. A busy machine takes its time: the limit is far off.
start_server() {
    # The file is there, and empty, before anybody looks: the background process may be slow to open it.
    : >"$scratch/out"
    "$@" >"$scratch/out" 2>"$scratch/log" &
    server=$!
    local deadline=$((SECONDS + 300))
    while [ "$SECONDS" -lt "$deadline" ] && kill -0 "$server" 2>/dev/null; do
        url=$(sed -nE 's/^foretype is ready on (http:[^ ,]*[0-9]).*/\1/p' "$scratch/out")
        [ -z "$url" ] || return 0
        sleep 0.1
    done
    echo "${suite:?}: the server did not start:" >&2
    cat "$scratch/log" >&2
    exit 1
}

# stop_server: ends the server, which must still run and end well.
stop_server() {
    if ! kill "$server" || ! wait "$server"; then
        echo "${suite:?}: the server ended badly:" >&2
        tail -20 "$scratch/log" >&2
        exit 1
    fi
    server=
}
