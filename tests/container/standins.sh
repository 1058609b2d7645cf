#!/usr/bin/env bash
# Makes stand-ins for the Dockerfile's base images on a machine that can't pull them: a Debian made by debootstrap, and the same
# with this machine's Rust toolchain. They get this machine's certificates, so that cargo and pip work inside as they do here.
#
# usage: tests/container/standins.sh     prints nothing; leaves foretype-standin-runtime and foretype-standin-rust in the engine
set -euo pipefail

has() { docker image inspect "$1" >/dev/null 2>&1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if ! has foretype-standin-runtime; then
    debootstrap --variant=minbase bookworm "$scratch/root" >"$scratch/log" || { tail "$scratch/log" >&2; exit 1; }
    rm -rf "$scratch/root/var/cache/apt/archives" "$scratch/root/var/lib/apt/lists"/*
    tar -C "$scratch/root" -c . | docker import \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - foretype-standin-runtime >/dev/null
fi

if ! has foretype-standin-rust; then
    context=$scratch/rust
    mkdir -p "$context/toolchain"
    toolchain=$(rustc --print sysroot)
    cp -r "$toolchain"/{bin,lib} "$context/toolchain"
    cp -L /etc/ssl/certs/ca-certificates.crt "$context"
    for config in "$HOME/.cargo/config.toml" /etc/pip.conf; do
        if [ -e "$config" ]; then cp "$config" "$context/$(basename "$config")"; else : >"$context/$(basename "$config")"; fi
    done
    cat >"$context/Dockerfile" <<'DOCKERFILE'
FROM foretype-standin-runtime
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    ca-certificates gcc libc6-dev python3 python3-venv >/dev/null
COPY toolchain /opt/rust
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
COPY config.toml /root/.cargo/config.toml
ENV PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt
DOCKERFILE
    DOCKER_BUILDKIT=0 docker build --quiet --network host --tag foretype-standin-rust "$context" >/dev/null
fi
