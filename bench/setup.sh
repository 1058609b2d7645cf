#!/usr/bin/env bash
# Brings the tools that `make bench` loads servers with: wrk, nginx, and JMeter unless there is no Java for it. What is there is
# left alone; what can't be had is named, and the measurements that need it are skipped.
set -euo pipefail

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

updated=
for package in wrk nginx-light jmeter; do
    command=${package%-light}
    if command -v "$command" >/dev/null || [ -x "/usr/sbin/$command" ]; then continue; fi
    [ -n "$updated" ] || as_root apt-get update -qq || true
    updated=1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
        printf 'bench: %s can not be installed; what needs it is skipped\n' "$package" >&2
done
