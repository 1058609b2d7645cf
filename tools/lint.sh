#!/usr/bin/env bash
# Everything that can be said about the code without running it.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/tensorrt_headers.sh "${CARGO_TARGET_DIR:-target}/tensorrt-headers"
tools/tensorrt_bindings.sh --check
cargo fmt --all --check
cargo fmt --manifest-path fuzz/Cargo.toml --check
cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked --document-private-items

if ! command -v cargo-deny >/dev/null; then
    cargo install cargo-deny --locked --quiet
fi
# Advisories need a database from the internet; the rest is decided by the lock file alone.
# `deny` looks at every platform; what this one does not build has to be fetched first.
cargo fetch --locked --quiet
cargo deny --offline check bans licenses sources

# shellcheck source=tools/install.sh
. tools/install.sh
needs shellcheck command -v shellcheck
git ls-files -z '*.sh' .ci/run nginx/serve | xargs -0 shellcheck --external-sources
