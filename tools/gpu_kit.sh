#!/usr/bin/env bash
# Packs what a machine with a GPU needs to check and measure foretype without network, compiler or Python: TARGET_DIR/gpu-kit/
# foretype-gpu-kit.tar.gz, and the same in slices of at most 55 MB. On that machine: cat the slices into `tar -xz`, then ./run.sh.
# NVIDIA's libraries are not in it: CUDA 13's have to be on the machine, as PyTorch brings them.
#
# usage: tools/gpu_kit.sh TARGET_DIR [PROFILE]     PROFILE is release unless it is given
set -euo pipefail
target=$(mkdir -p "${1:?usage: tools/gpu_kit.sh TARGET_DIR [PROFILE]}" && realpath "$1")
profile=${2:-release}
cd "$(dirname "$0")/.."
out=$target/gpu-kit
kit=$out/foretype-gpu-kit
SLICE_BYTES=55000000

tools/setup.sh "$target/$profile"
tools/setup.sh "$target/checked"
build=(--locked --features foretype/tensorrt --workspace)
export CARGO_TARGET_DIR=$target
cargo build --profile "$profile" "${build[@]}" --bins
# The tests are not measured. Other packages of the workspace have a test of the same name.
suite=$(cargo test --profile checked "${build[@]}" --test suite --no-run --message-format json |
    sed -n "s|.*\"manifest_path\":\"$PWD/Cargo.toml\".*\"name\":\"suite\".*\"executable\":\"\([^\"]*\)\".*|\1|p")

rm -rf "$out"
mkdir -p "$kit/bin" "$kit/tests"
for program in "$target/$profile/foretype" "$target/$profile/foretype-bench"; do strip -o "$kit/bin/${program##*/}" "$program"; done
strip -o "$kit/bin/suite" "$suite"
tools/onnxruntime_gpu.sh "$target/onnxruntime-gpu"
cp "$target"/onnxruntime-gpu/*.so* "$kit/bin/"
cp -r tests/goldens "$kit/tests/"
mkdir "$kit/models"
cp -r models/demo "$kit/models/"
cp -r "$(tools/gpt2_vocabulary.sh "$target/gpt2-vocabulary")" "$kit/vocabulary"
"$kit/bin/foretype" build "$kit/models/demo" --dtype f16 --out "$kit/bundles/demo" >/dev/null
cp tests/gpu/kit.sh "$kit/run.sh"
cp tests/gpu/pytorch.py LICENSE "$kit/"
git describe --always --dirty --abbrev=12 >"$kit/commit"

tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner -cf - foretype-gpu-kit | gzip -6 >"$kit.tar.gz"
split --bytes="$SLICE_BYTES" --numeric-suffixes=1 --suffix-length=2 "$kit.tar.gz" "$kit.tar.gz."
(cd "$out" && sha256sum foretype-gpu-kit.tar.gz* >SHA256SUMS && ls -l --block-size=1 foretype-gpu-kit.tar.gz*)
