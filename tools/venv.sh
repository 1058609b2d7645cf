# shellcheck shell=bash
# For `source`: Python environments that hold exactly what a lock says.

# requirements_venv FOLDER LOCK...: makes the environment, or makes it anew if it is of other locks or was left unfinished.
requirements_venv() {
    local venv=$1 lock
    shift
    if cat "$@" | cmp -s - "$venv/installed.txt"; then return; fi
    rm -rf "$venv"
    python3 -m venv "$venv"
    for lock in "$@"; do
        "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$lock"
    done
    cat "$@" >"$venv/installed.txt"
}
