#!/usr/bin/env bash
# `make soak`: mounts a small disk in memory for the soak to fill, runs it, and unmounts the disk.
#
# usage: bench/soak.sh BENCH MINUTES TARGET_DIR
set -euo pipefail
usage="usage: bench/soak.sh BENCH MINUTES TARGET_DIR"
bench=${1:?$usage} minutes=${2:?$usage}
disk=${3:?$usage}/soak-disk
as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo); fi

mkdir -p "$disk"
"${as_root[@]}" mount -t tmpfs -o "size=64m,mode=1777" foretype-soak "$disk"
trap '"${as_root[@]}" umount "$disk"' EXIT
"$bench" soak --minutes "$minutes" --disk "$disk"
