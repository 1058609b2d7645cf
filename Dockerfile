# foretype as Amazon SageMaker starts it: docker run IMAGE serve
#
#   docker build --target cpu -t foretype .
#   docker build --target gpu -t foretype:gpu --build-arg ACCEPT_NVIDIA_LICENCES=yes .
#
# Pin what you build on by its digest: --build-arg CPU_RUNTIME_IMAGE=debian:bookworm-slim@sha256:...
# The build and the CPU runtime have to be of the same Debian release or the runtime of a later one: the binary uses its C library.
ARG RUST_IMAGE=rust:1.95-slim-bookworm
ARG CPU_RUNTIME_IMAGE=debian:bookworm-slim
# The CUDA of the gpu target: 13.0.1 for drivers of version 580, which SageMaker's al2023-ami-sagemaker-inference-gpu-4-1 has, or 12.9.1
# for 535 and 550, as in its al2-ami-sagemaker-inference-gpu-2 and -3-1.
ARG CUDA=13.0.1
ARG GPU_RUNTIME_IMAGE=nvidia/cuda:${CUDA}-base-ubuntu24.04

# ---- what the binary loads at run time; its own stage, because it changes with its version only
FROM ${RUST_IMAGE} AS onnxruntime
COPY tools/install.sh tools/setup.sh tools/tensorrt_headers.sh /build/tools/
COPY tools/requirements/onnxruntime.txt /build/tools/requirements/
RUN /build/tools/setup.sh /onnxruntime && rm -rf /var/lib/apt/lists/*

# ---- the binary
FROM onnxruntime AS build
WORKDIR /build
# Dependencies first, against sources that hold nothing: this layer lasts until Cargo.lock changes.
COPY Cargo.toml Cargo.lock ./
COPY engine-build/Cargo.toml engine-build/
COPY bench/Cargo.toml bench/
COPY crates/backends/Cargo.toml crates/backends/
COPY crates/bundle/Cargo.toml crates/bundle/
COPY crates/completion/Cargo.toml crates/completion/
COPY crates/kernels/Cargo.toml crates/kernels/
COPY crates/scheduler/Cargo.toml crates/scheduler/
COPY crates/sources/Cargo.toml crates/sources/
COPY crates/tensorrt-rs/Cargo.toml crates/tensorrt-rs/
COPY tests/require/Cargo.toml tests/require/
# hadolint ignore=DL4006
RUN mkdir -p src bench/src tests/suite \
    && for crate in engine-build crates/* tests/require; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done \
    && echo 'fn main() {}' | tee src/main.rs bench/src/main.rs tests/suite/main.rs >src/lib.rs \
    && cargo build --release --locked --no-default-features --features remote,tensorrt,opentelemetry \
    && rm -rf src engine-build/src crates/*/src
COPY engine-build/src engine-build/src
COPY crates crates
COPY src src
# Cargo goes by times, and these files may be older than the empty ones were.
RUN find src engine-build/src crates -name '*.rs' -exec touch {} + \
    && cargo build --release --locked --no-default-features --features remote,tensorrt,opentelemetry \
    && strip --strip-debug -o /foretype target/release/foretype

# ---- CPU
FROM ${CPU_RUNTIME_IMAGE} AS cpu
# nginx as the base's release has it: pinned by the base, with its security fixes.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates libstdc++6 nginx >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /etc/nginx
COPY --from=onnxruntime /onnxruntime /opt/foretype
COPY --from=build /foretype /opt/foretype/foretype
COPY nginx/nginx.conf nginx/serve /opt/foretype/nginx/
# A folder of the build context to have the model in the image; without it only the licence is copied.
ARG MODEL=
COPY ${MODEL:-LICENSE} /opt/foretype/model/
# The list of what the binary is made of, from tools/sbom.sh; build_and_push.sh gives it.
ARG SBOM=
COPY ${SBOM:-LICENSE} /opt/foretype/sbom/
ENV PATH=/opt/foretype:$PATH
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true \
      com.amazonaws.sagemaker.capabilities.multi-models=true \
      org.opencontainers.image.title=foretype \
      org.opencontainers.image.description="Completes search queries as people type them, with a GPT-style language model" \
      org.opencontainers.image.licenses=Apache-2.0
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.version=${VERSION} org.opencontainers.image.revision=${REVISION}
EXPOSE 8080
# Nobody in particular. `docker run IMAGE build` into a folder of yours wants --user "$(id -u)".
USER 10001:10001
ENTRYPOINT ["/opt/foretype/nginx/serve"]
CMD ["serve"]

# ---- GPU: the same on CUDA, with TensorRT, and with the ONNX Runtime that has a CUDA provider
FROM onnxruntime AS onnxruntime-gpu
COPY tools/onnxruntime_gpu.sh /build/tools/
COPY tools/requirements/onnxruntime-gpu.txt /build/tools/requirements/
ARG CUDA
# Python's package index has this version for CUDA 13 only; for CUDA 12 ONNX Runtime stays the one for CPUs.
RUN if [ "${CUDA%%.*}" = 13 ]; then rm -r /onnxruntime && /build/tools/onnxruntime_gpu.sh /onnxruntime; fi

FROM ${GPU_RUNTIME_IMAGE} AS gpu
# nginx as the base's release has it: pinned by the base, with its security fixes.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates libstdc++6 nginx >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /etc/nginx
ARG CUDA
# "yes" accepts NVIDIA's licences of what is installed here; nothing of it is in this repository.
ARG ACCEPT_NVIDIA_LICENCES=
COPY tools/nvidia_packages.sh /opt/foretype/
RUN /opt/foretype/nvidia_packages.sh "${CUDA}" "${ACCEPT_NVIDIA_LICENCES}"
COPY --from=onnxruntime-gpu /onnxruntime /opt/foretype
COPY --from=build /foretype /opt/foretype/foretype
COPY nginx/nginx.conf nginx/serve /opt/foretype/nginx/
ARG MODEL=
COPY ${MODEL:-LICENSE} /opt/foretype/model/
ARG SBOM=
COPY ${SBOM:-LICENSE} /opt/foretype/sbom/
# On TensorRT and all GPUs or not at all: the CPU of a GPU machine, in silence, would be the dearest mistake.
ENV PATH=/opt/foretype:$PATH \
    FORETYPE_BACKEND=tensorrt \
    FORETYPE_DEVICE=cuda:all \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true \
      com.amazonaws.sagemaker.capabilities.multi-models=true \
      org.opencontainers.image.title=foretype \
      org.opencontainers.image.description="Completes search queries as people type them, with a GPT-style language model" \
      org.opencontainers.image.licenses=Apache-2.0
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.version=${VERSION} org.opencontainers.image.revision=${REVISION}
EXPOSE 8080
# Nobody in particular. `docker run IMAGE build` into a folder of yours wants --user "$(id -u)".
USER 10001:10001
ENTRYPOINT ["/opt/foretype/nginx/serve"]
CMD ["serve"]
