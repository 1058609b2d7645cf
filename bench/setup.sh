#!/usr/bin/env bash
# Brings the tools that `make bench` loads servers with: wrk, nginx, and JMeter with its HTTP module. What is there is left alone; what can't be had is named, and the measurements that need it are skipped.
set -euo pipefail

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

updated=
# needs PACKAGE COMMAND...: installs PACKAGE if COMMAND fails.
needs() {
    local package=$1
    shift
    if "$@" >/dev/null 2>&1; then return; fi
    [ -n "$updated" ] || as_root apt-get update -qq || true
    updated=1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
        printf 'bench: %s can not be installed; what needs it is skipped\n' "$package" >&2
}

needs wrk command -v wrk
needs nginx-light test -x /usr/sbin/nginx
needs jmeter command -v jmeter
# Debian's JMeter is in pieces, and needs a compiler for bench/jmeter/Run.java; another one brings all of that.
if [ -e /usr/share/jmeter/bin/ApacheJMeter.jar ]; then
    needs jmeter-http test -e /usr/share/jmeter/lib/ext/ApacheJMeter_http.jar
    needs default-jdk-headless command -v javac
fi
