#!/usr/bin/env bash
# Brings the tools that `make bench` loads servers with: wrk, nginx, and JMeter with its HTTP module. What is there is left alone; what can't be had is named, and the measurements that need it are skipped.
set -euo pipefail

cd "$(dirname "$0")/.."
# shellcheck source=tools/install.sh
. tools/install.sh
# shellcheck source=tests/lib/require.sh
. tests/lib/require.sh

# tool PACKAGE COMMAND...
tool() { needs "$@" || skip "measurements with $1" "the package can't be installed"; }

tool wrk command -v wrk
tool nginx-light test -x /usr/sbin/nginx
tool jmeter command -v jmeter
# Debian's JMeter is in pieces, and needs a compiler for bench/jmeter/Run.java; another one brings all of that.
if [ -e /usr/share/jmeter/bin/ApacheJMeter.jar ]; then
    tool jmeter-http test -e /usr/share/jmeter/lib/ext/ApacheJMeter_http.jar
    tool default-jdk-headless command -v javac
fi
