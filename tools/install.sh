# shellcheck shell=bash
# For `source`: installs Debian packages that are missing. Another apt may be at work, and a mirror may fail once: both are waited for.

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# apt_install PACKAGE...
apt_install() {
    command -v apt-get >/dev/null || { echo "$* is missing; install it and run this again" >&2; return 1; }
    echo "installing $*" >&2
    local try status=1 policy=/usr/sbin/policy-rc.d
    # Installing must not start a service.
    if [ -e "$policy" ]; then policy=; else as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"; fi
    for try in 1 2 3; do
        if [ -z "${apt_updated:-}" ]; then
            as_root apt-get update -qq -o DPkg::Lock::Timeout=600 && apt_updated=1
        fi
        if as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o DPkg::Lock::Timeout=600 "$@" >/dev/null; then
            status=0
            break
        fi
        apt_updated=
        sleep "$((try * 5))"
    done
    [ -z "$policy" ] || as_root rm -f "$policy"
    return "$status"
}

# needs PACKAGE COMMAND...: installs PACKAGE if COMMAND fails.
needs() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || apt_install "$package"
}

# python_venv FOLDER REQUIREMENTS: a Python environment with what the file lists. installed.txt tells a complete one from one whose
# installation was interrupted, or that has other versions.
python_venv() {
    local venv=$1 requirements=$2
    cmp -s "$requirements" "$venv/installed.txt" && return
    needs python3 python3 --version
    needs python3-venv python3 -c 'import ensurepip, venv'
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements"
    cp "$requirements" "$venv/installed.txt"
}
