#!/usr/bin/env bash
# A download of 2 GB by `foretype serve` beside one by a client that does nothing else: see check.py.
#
# usage: tests/download/run.sh TARGET_DIR PROFILE [ARGUMENT...]     such as: target release --turns 5; check.py lists the arguments
#
#   DOWNLOAD_FOLDER  where 6 GB are written for the time (default: the folder for temporary files)
set -euo pipefail

target=$(realpath "${1:?usage: tests/download/run.sh TARGET_DIR PROFILE [ARGUMENT...]}")
profile=${2:?usage: tests/download/run.sh TARGET_DIR PROFILE [ARGUMENT...]}
shift 2
cd "$(dirname "$0")/../.."

CARGO_TARGET_DIR=$target cargo build --profile "$profile" --locked -p foretype-sources --example alone
PYTHONDONTWRITEBYTECODE=1 python3 tests/download/check.py "$target/$profile/foretype" "$target/$profile/examples/alone" "$@"
