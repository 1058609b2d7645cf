#!/usr/bin/env bash
# Writes crates/tensorrt-rs/src/bindings.rs from crates/tensorrt-rs/shim/shim.h with bindgen. It is checked in, so that builds need neither bindgen
# nor libclang; both are installed here, into the target folder, when they are missing.
#
# usage: tools/tensorrt_bindings.sh [--check]     --check only says whether the file is what bindgen would write
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BINDGEN=0.72.1
target=${CARGO_TARGET_DIR:-target}
tools=$target/bindgen-$BINDGEN
bindings=crates/tensorrt-rs/src/bindings.rs

if [ ! -x "$tools/bin/bindgen" ]; then
    cargo install bindgen-cli --version "$BINDGEN" --locked --quiet --root "$tools"
fi
libclang=$(find "$tools" -name 'libclang.so' -printf '%h\n' -quit)
if [ -z "$libclang" ]; then
    python3 -m venv "$tools/venv"
    "$tools/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement tools/requirements/libclang.txt
    libclang=$(find "$tools" -name 'libclang.so' -printf '%h\n' -quit)
fi

# As C++, because libclang comes without the compiler's own C headers.
generated=$tools/bindings.rs
LIBCLANG_PATH=$libclang "$tools/bin/bindgen" crates/tensorrt-rs/shim/shim.h --output "$generated" --allowlist-file '.*/shim\.h' \
    --no-layout-tests --use-core --disable-header-comment --rust-target 1.85 --rust-edition 2024 -- -x c++
rustfmt --edition 2024 --config-path . "$generated"
if [ "${1:-}" = --check ]; then
    diff -u "$bindings" "$generated" || { echo "$bindings is out of date: run tools/tensorrt_bindings.sh" >&2; exit 1; }
else
    cp "$generated" "$bindings"
fi
