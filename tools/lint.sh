#!/usr/bin/env bash
# Everything that can be said about the code without running it.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/tensorrt_headers.sh "${CARGO_TARGET_DIR:-target}/tensorrt-headers"
tools/tensorrt_bindings.sh --check
tools/cuda_kernels.sh "${CARGO_TARGET_DIR:-target}" --check
cargo fmt --all --check
cargo fmt --manifest-path fuzz/Cargo.toml --check
# rustfmt leaves lines alone that it can't break, such as those with a long string.
if git ls-files -z '*.rs' | LC_ALL=C.UTF-8 xargs -0 grep -nE '^.{121,}'; then
    echo "lint: these lines are longer than 120 columns" >&2
    exit 1
fi
# One profile and one set of features: build scripts and macros are those of `make test`, and rustdoc reads what clippy has checked.
cargo clippy --profile checked --workspace --all-targets --all-features --locked -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --profile checked --workspace --all-features --no-deps --locked --document-private-items

if ! command -v cargo-deny >/dev/null; then
    # Without optimisation: to compile it takes longer than its work.
    cargo install cargo-deny --locked --quiet --debug
fi
# `deny` looks at every platform; what this one does not build has to be fetched first.
cargo fetch --locked --quiet
cargo deny --offline check bans licenses sources
# The rest is decided by the lock file alone; advisories are in a database that has to be fetched.
# shellcheck source=tests/lib/require.sh
. tests/lib/require.sh
if git ls-remote --exit-code https://github.com/rustsec/advisory-db HEAD >/dev/null 2>&1; then
    cargo deny check advisories
else
    absent "advisories of crates" "RustSec's database can't be reached"
fi

# shellcheck source=tools/install.sh
. tools/install.sh
needs shellcheck command -v shellcheck
bench/tables.py --check
tools/prose.sh "${CARGO_TARGET_DIR:-target}"
# shellcheck source=tools/venv.sh
. tools/venv.sh
ruff=${CARGO_TARGET_DIR:-target}/ruff-venv
requirements_venv "$ruff" tools/requirements/ruff.txt
check_python() {
    local config=$1
    shift
    "$ruff/bin/ruff" check --quiet --no-cache --config "$config" "$@"
    "$ruff/bin/ruff" format --check --quiet --no-cache --config "$config" "$@"
}
check_python tests/deploy/ruff.toml deploy tests/deploy tools/sbom.py
check_python tests/lib/ruff.toml tests/popular tests/balance tests/notebook tests/download deploy/foretype.ipynb tests/lib bench/day.py \
    tests/deploy/test_kubernetes.py tests/deploy/test_day.py
git ls-files -z '*.sh' .ci/run nginx/serve | xargs -0 shellcheck --external-sources
