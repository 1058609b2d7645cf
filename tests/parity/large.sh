#!/usr/bin/env bash
# Builds a large random checkpoint, GPT-J's shape with 3 billion parameters in several files, and shows that memory does
# not grow with the model. The files are deleted in the end.
#
#   FORETYPE    the binary under test                      (default: target/release/foretype)
#   LARGE_DIR   where 6 GB of checkpoint and as much bundle go   (default: a new folder in the temporary directory)
#   LARGE_ARGS  arguments of make_large.py, for another size
#   DTYPES      precisions to build                        (default: f16 f32)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

foretype=${FORETYPE:-target/release/foretype}
max_build_mib=4096

fail() {
    echo "large: $*" >&2
    exit 1
}

[[ -x $foretype ]] || fail "no $foretype; build it with: cargo build --release"
dir=$(mktemp -d "${LARGE_DIR:-${TMPDIR:-/tmp}}/large.XXXXXX")
trap 'rm -rf "$dir"' EXIT

# shellcheck disable=SC2086 # several arguments
parameters=$(python3 "$here/make_large.py" "$dir/checkpoint" ${LARGE_ARGS:-})
row() { printf '%-34s %s\n' "$1" "$2"; }
row "parameters" "$parameters"
row "checkpoint, MiB" "$(du -sm "$dir/checkpoint" | cut -f1)"
row "checkpoint, files" "$(find "$dir/checkpoint" -name '*.safetensors' | wc -l)"
for dtype in ${DTYPES:-f16 f32}; do
    python3 "$here/measure.py" "$dir/build.txt" \
        "$foretype" build "$dir/checkpoint" --out "$dir/bundle" --dtype "$dtype" >/dev/null 2>"$dir/log.txt" ||
        fail "the build failed: $(tail -n 3 "$dir/log.txt")"
    read -r seconds mib _ <"$dir/build.txt"
    row "$dtype: bundle, MiB" "$(du -sm "$dir/bundle" | cut -f1)"
    row "$dtype: build, seconds" "$seconds"
    row "$dtype: peak MiB (below $max_build_mib)" "$mib"
    rm -rf "$dir/bundle"
    ((mib < max_build_mib)) || fail "the build took $mib MiB"
done
