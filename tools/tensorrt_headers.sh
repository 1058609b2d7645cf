#!/usr/bin/env bash
# Fetches the headers of TensorRT 11 and TensorRT-RTX 1 (NVIDIA's, Apache-2.0), which the crate tensorrt-rs compiles against, and
# puts them into DIR/enterprise and DIR/rtx. They come unmodified inside the source of the crate trtx-sys; nothing of that crate is
# built or used. Does nothing where TENSORRT_INCLUDE_DIR names other headers or DIR has these.
#
# usage: tools/tensorrt_headers.sh DIR     such as target/tensorrt-headers, where the crate's build.rs looks
set -euo pipefail

readonly CRATE=trtx-sys VERSION=0.9.1 SHA256=5480ee056292951daa1bc74532162d6cb75190f091e45d7d97c0c356916ae171 ENTERPRISE=TRT-Enterprise-11.4 RTX=TRT-RTX-1.7
dir=${1:?usage: tools/tensorrt_headers.sh DIR}
[ -z "${TENSORRT_INCLUDE_DIR:-}" ] || exit 0
stamp="$CRATE $VERSION $ENTERPRISE $RTX"
if [ "$(cat "$dir/complete" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
echo "tensorrt headers: fetching" >&2

# cargo fetches what a manifest names and leaves the sources where it says.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/src"
touch "$scratch/src/lib.rs"
cat >"$scratch/Cargo.toml" <<TOML
[package]
name = "headers"
edition = "2021"
[dependencies]
$CRATE = { version = "=$VERSION", default-features = false }
TOML
(cd "$scratch" && cargo vendor --quiet --versioned-dirs vendor >/dev/null)
if ! grep -q "\"package\":\"$SHA256\"" "$scratch/vendor/$CRATE-$VERSION"*/.cargo-checksum.json; then
    echo "tensorrt headers: the crate $CRATE $VERSION isn't the one whose hash is in $0" >&2
    exit 1
fi
headers=("$scratch/vendor/$CRATE-$VERSION"*/TensorRT-Headers)
rm -rf "$dir"
mkdir -p "$dir/enterprise" "$dir/rtx"
# Enterprise has a folder of implementation headers that these do not need.
cp "${headers[0]}/$ENTERPRISE"/*.h "$dir/enterprise/"
cp "${headers[0]}/$RTX"/*.h "$dir/rtx/"
echo "$stamp" >"$dir/complete"
