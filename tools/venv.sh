# shellcheck shell=bash
# For `source`: Python environments that hold exactly what a lock says.

# requirements_venv FOLDER LOCK...: makes the environment, or makes it anew if it is of other locks or was left unfinished. Of several
# programs that want the same one at once, one makes it and the others wait.
requirements_venv() {
    local venv=$1
    shift
    mkdir -p "$(dirname "$venv")"
    (
        # macOS has no flock; there, one at a time is up to the caller.
        if command -v flock >/dev/null; then flock 9; fi
        if cat "$@" | cmp -s - "$venv/installed.txt"; then exit; fi
        rm -rf "$venv"
        python3 -m venv "$venv"
        for lock in "$@"; do
            "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$lock"
        done
        cat "$@" >"$venv/installed.txt"
    ) 9>"$venv.lock"
}

# torch_venv FOLDER: names an environment with PyTorch and transformers in `venv`: the lent one, or FOLDER/venv as locked. It prints
# nothing, because in $(...) a failure would not end the caller.
torch_venv() {
    venv=${FORETYPE_TORCH_VENV:-$1/venv}
    [ -n "${FORETYPE_TORCH_VENV:-}" ] || requirements_venv "$venv" models/demo/training/requirements.txt >&2
}
