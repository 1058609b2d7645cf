#!/usr/bin/env bash
# Runs JMeter: the one on the path, and Debian's through Run.java, because it reads no plan as it is packaged.
# usage: bench/jmeter/run.sh JMETER_ARGUMENTS...
set -euo pipefail
readonly packaged=/usr/share/jmeter/bin/ApacheJMeter.jar
if [[ $(readlink -f "$(command -v jmeter)") == /usr/share/jmeter/* ]]; then
    exec java -cp "$packaged" "$(dirname "$0")/Run.java" "$@"
fi
exec jmeter "$@"
