#!/usr/bin/env bash
# Writes the list of what the container's binary is made of (SBOM, CycloneDX 1.6), with the features that the Dockerfile builds.
#
# usage: tools/sbom.sh FILE
set -euo pipefail
out=$(realpath "${1:?usage: tools/sbom.sh FILE}")
cd "$(dirname "$0")/.."

# shellcheck source=tools/install.sh
. tools/install.sh
needs python3-venv python3 -c 'import ensurepip, venv'
# shellcheck source=tools/venv.sh
. tools/venv.sh
venv=${CARGO_TARGET_DIR:-target}/sbom-venv
requirements_venv "$venv" tools/requirements/sbom.txt
features=$(sed -n 's/.*--no-default-features --features \([a-z,]*\).*/\1/p' Dockerfile | sort -u)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The metadata has all of the workspace, whose members ask for more features; the tree has what the binary has.
cargo tree --quiet --locked --package foretype --edges normal --prefix none --target x86_64-unknown-linux-gnu \
    --no-default-features --features "$features" >"$scratch/tree.txt"
cargo metadata --quiet --locked --format-version 1 --filter-platform x86_64-unknown-linux-gnu --no-default-features \
    --features "$features" >"$scratch/metadata.json"
mkdir -p "$(dirname "$out")"
"$venv/bin/python" tools/sbom.py "$out" "$scratch/metadata.json" "$scratch/tree.txt"
echo "sbom: $out" >&2
