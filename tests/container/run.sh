#!/usr/bin/env bash
# Builds the image with a real Docker engine and tries it as Amazon SageMaker would. Everything missing is installed (Debian), the
# engine is started if none runs, and bases that can't be pulled are made here. What it starts it ends; the engine's data stays in
# the target folder, so that the next run is quick.
#
# usage: tests/container/run.sh TARGET_DIR [pytest arguments]
#   FORETYPE_124M=DIR    a bundle of a 124M model to take the start time of; default TARGET_DIR/parity/bundle, if it is there
set -euo pipefail

CARGO_TARGET_DIR=$(mkdir -p "${1:?usage: tests/container/run.sh TARGET_DIR}" && realpath "$1")
export CARGO_TARGET_DIR
target=$CARGO_TARGET_DIR/container
shift
cd "$(dirname "$0")/../.."
here=$PWD/tests/container
mkdir -p "$target"

say() { printf 'container: %s\n' "$*" >&2; }
# shellcheck source=tools/install.sh
. tools/install.sh
needs python3 command -v python3
needs python3-venv python3 -c 'import ensurepip, venv'
needs docker-registry command -v docker-registry
needs shellcheck command -v shellcheck
needs docker.io command -v docker
needs kubernetes-client command -v kubectl

# ---- an engine
engine=
cleanup() {
    status=$?
    if [ -n "$engine" ]; then
        docker ps --all --quiet --filter name=foretype-test- | xargs --no-run-if-empty docker rm --force >/dev/null 2>&1 || true
        as_root kill "$engine" 2>/dev/null || true
        wait 2>/dev/null || true
    fi
    exit "$status"
}
trap cleanup EXIT
if ! docker version >/dev/null 2>&1; then
    needs docker.io command -v dockerd
    say "starting a Docker engine"
    # Neither a bridge nor a firewall: containers here share the host's network or have none.
    as_root dockerd --iptables=false --ip6tables=false --bridge=none --data-root "$target/engine" --exec-root "$target/exec" \
        --pidfile "$target/engine.pid" --group "$(id -gn)" -H "unix://$target/docker.sock" >"$target/engine.log" 2>&1 &
    export DOCKER_HOST=unix://$target/docker.sock
    for _ in $(seq 100); do
        if docker version >/dev/null 2>&1; then break; fi
        sleep 0.2
    done
    docker version >/dev/null || { tail "$target/engine.log" >&2; exit 1; }
    engine=$(cat "$target/engine.pid")
fi
# The older builder is in every engine; the newer one needs a component that isn't everywhere.
docker buildx version >/dev/null 2>&1 || export DOCKER_BUILDKIT=0

# ---- bases: the Dockerfile's own, or stand-ins
default_of() { sed -n "s/^ARG $1=//p" Dockerfile | head -1; }
runtime=$(default_of CPU_RUNTIME_IMAGE)
rust=$(default_of RUST_IMAGE)
pulled() { docker image inspect "$1" >/dev/null 2>&1 || timeout 300 docker pull --quiet "$1" >/dev/null 2>&1; }
if ! { pulled "$runtime" && pulled "$rust"; }; then
    say "the base images can't be pulled; making stand-ins"
    needs debootstrap command -v debootstrap
    "$here/standins.sh"
    runtime=foretype-standin-runtime rust=foretype-standin-rust
fi
bases=(--build-arg "RUST_IMAGE=$rust" --build-arg "CPU_RUNTIME_IMAGE=$runtime")

# ---- the images
build() { docker build --quiet --network host "${bases[@]}" "$@" . >"$target/build.log" 2>&1 || { tail -50 "$target/build.log" >&2; exit 1; }; }
started=$SECONDS
say "building; the first time takes minutes"
build --target cpu --tag foretype:test
build --target cpu --build-arg MODEL=models/demo --tag foretype:baked
# The gpu target on a base whose package repository has stand-ins for NVIDIA's packages.
"$here/standin_nvidia.sh" "$runtime"
gpu_bases=(--build-arg GPU_RUNTIME_IMAGE=foretype-standin-nvidia)
build --target gpu "${gpu_bases[@]}" --build-arg ACCEPT_NVIDIA_LICENCES=yes --tag foretype:gpu-standin
say "built in $((SECONDS - started)) s"

# ---- the binary whose local-endpoint stands in front of the containers; `make test` has built the same
tools/setup.sh "$CARGO_TARGET_DIR/checked"
PATH=$PATH:$HOME/.cargo/bin cargo build --profile checked --locked --features foretype/tensorrt --workspace
export FORETYPE_BINARY=$CARGO_TARGET_DIR/checked/foretype
say "packing the kit for machines with a GPU"
tools/gpu_kit.sh "$CARGO_TARGET_DIR" checked >"$target/kit.log" 2>&1 || { tail -50 "$target/kit.log" >&2; exit 1; }
export FORETYPE_GPU_KIT=$CARGO_TARGET_DIR/gpu-kit FORETYPE_RUNTIME_IMAGE=$runtime

# ---- the tests
venv=$target/venv
# shellcheck source=tools/venv.sh
. tools/venv.sh
requirements_venv "$venv" "$here/requirements.txt"
shellcheck --external-sources build_and_push.sh nginx/serve tests/container/*.sh
"$venv/bin/hadolint" Dockerfile
export FORETYPE_IMAGE=foretype:test PYTHONDONTWRITEBYTECODE=1
FORETYPE_BUILD_ARGS=$(printf '{"RUST_IMAGE": "%s", "CPU_RUNTIME_IMAGE": "%s", "GPU_RUNTIME_IMAGE": "foretype-standin-nvidia"}' "$rust" "$runtime")
export FORETYPE_BUILD_ARGS
cd "$here"
# Most side by side, because they wait more than they work; then those that measure.
"$venv/bin/python" -m pytest -q -n 6 -m 'not alone' "$@"
"$venv/bin/python" -m pytest -q -s -m alone "$@"

bundle=${FORETYPE_124M:-${target%/container}/parity/bundle}
[ -e "$bundle/manifest.json" ] || bundle=
"$venv/bin/python" figures.py "$runtime" ${bundle:+"$bundle"}
