#!/usr/bin/env bash
# The real-size check, for `make parity`: builds a bundle from a random model of GPT-2's shape (124M) within the limits
# on time and memory, then compares the built model's answers with transformers'.
#
#   FORETYPE     the binary under test              (default: target/checked/foretype)
#   PARITY_DIR   checkpoint, reference and bundle   (default: target/parity; delete it to make the reference anew)
#   PARITY_VENV  Python with transformers, needed only while there is no reference (default: PARITY_DIR/venv)
#
# The Rust test prints its own figures as lines `parity: NAME = VALUE`; the table at the end gathers them all.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

foretype=${FORETYPE:-target/checked/foretype}
dir=${PARITY_DIR:-target/parity}
venv=${PARITY_VENV:-$dir/venv}
max_build_seconds=30
max_build_mib=1536

fail() {
    echo "parity: $*" >&2
    exit 1
}

[[ -x $foretype ]] || fail "no $foretype; build it with: make parity"
mkdir -p "$dir"

# reference.json is the last file to be written.
if [[ ! -f $dir/reference.json ]]; then
    # An environment that is there is taken as it is: it may be a lent one.
    # shellcheck source=tools/venv.sh
    . "$here/../../tools/venv.sh"
    [[ -f $venv/installed.txt ]] || requirements_venv "$venv" "$here/requirements.txt"
    echo "parity: making the reference in $dir (some minutes, once)"
    "$venv/bin/python" "$here/make_reference.py" "$dir"
fi

rm -rf "$dir/bundle"
python3 "$here/measure.py" "$dir/build.txt" "$foretype" build "$dir/checkpoint" --out "$dir/bundle"
read -r build_seconds build_mib _ <"$dir/build.txt"

status=0
FORETYPE_PARITY_DIR=$(cd "$dir" && pwd) cargo test --profile checked --locked --features foretype/tensorrt --workspace --test suite -- \
    parity::transformers_124m --exact --ignored --nocapture 2>&1 | tee "$dir/test.txt" || status=$?
# A name that matches nothing passes too.
if ((status == 0)) && ! grep -q '^test result: ok. 1 passed' "$dir/test.txt"; then
    fail "the test parity::transformers_124m did not run"
fi

row() { printf '%-44s %s\n' "$1" "$2"; }
echo
row "build, seconds (below $max_build_seconds)" "$build_seconds"
row "build, peak resident MiB (below $max_build_mib)" "$build_mib"
sed -nE 's/^  "(.*)": "?([^",]*)"?,?$/\1\t\2/p' "$dir/reference.json" |
    while IFS=$'\t' read -r name value; do row "reference, $name" "$value"; done
# With --nocapture the first line a test prints follows "test NAME ... ".
sed -nE 's/^(test [^ ]+ \.\.\. )?parity: (.*) = (.*)$/\2\t\3/p' "$dir/test.txt" |
    while IFS=$'\t' read -r name value; do row "$name" "$value"; done

((status == 0)) || fail "the answers differ from transformers'"
awk -v seconds="$build_seconds" -v limit="$max_build_seconds" 'BEGIN { exit !(seconds < limit) }' ||
    fail "the build took $build_seconds s"
((build_mib < max_build_mib)) || fail "the build took $build_mib MiB"
