#!/usr/bin/env bash
# Checks the protocol of the kernels' team of threads (crates/kernels/src/threads.rs) with loom: every order of the threads' steps, up
# to a number of preemptions. A build of its own, because loom replaces the atomics.
set -euo pipefail
cd "$(dirname "$0")/.."

export RUSTFLAGS='--cfg loom' LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}"
cargo test --locked --profile checked -p foretype-kernels --lib --target-dir "${1:-target}/loom" -- loom_tests
