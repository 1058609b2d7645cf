# foretype as Amazon SageMaker starts it: docker run IMAGE serve
#
#   docker build --target cpu -t foretype .
#   docker build --target gpu --build-arg TENSORRT_IMAGE=... -t foretype:gpu .
#
# Pin what you build on by its digest: --build-arg CPU_RUNTIME_IMAGE=debian:bookworm-slim@sha256:...
# The build and the CPU runtime have to be of the same Debian release or the runtime of a later one: the binary uses its C library.
ARG RUST_IMAGE=rust:1.95-slim-bookworm
ARG CPU_RUNTIME_IMAGE=debian:bookworm-slim
ARG GPU_RUNTIME_IMAGE=nvidia/cuda:12.9.1-base-ubuntu24.04
# An image that has NVIDIA's TensorRT, and where in it the libraries are. NVIDIA's licence: they are nowhere in this repository.
ARG TENSORRT_IMAGE=name-one-with-build-arg-tensorrt-image

# ---- what the binary loads at run time; its own stage, because it changes with its version only
FROM ${RUST_IMAGE} AS onnxruntime
COPY tools/install.sh tools/setup.sh tools/tensorrt_headers.sh /build/tools/
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
COPY crates/tensorrt-rs/Cargo.toml crates/tensorrt-rs/
COPY tests/require/Cargo.toml tests/require/
# hadolint ignore=DL4006
RUN mkdir -p src bench/src tests/suite \
    && for crate in engine-build crates/* tests/require; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done \
    && echo 'fn main() {}' | tee src/main.rs bench/src/main.rs tests/suite/main.rs >src/lib.rs \
    && cargo build --release --locked --no-default-features --features tensorrt \
    && rm -rf src engine-build/src crates/*/src
COPY engine-build/src engine-build/src
COPY crates crates
COPY src src
# Cargo goes by times, and these files may be older than the empty ones were.
RUN find src engine-build/src crates -name '*.rs' -exec touch {} + \
    && cargo build --release --locked --no-default-features --features tensorrt \
    && strip --strip-debug -o /foretype target/release/foretype

# ---- CPU
FROM ${CPU_RUNTIME_IMAGE} AS cpu
# nginx as the base's release has it: pinned by the base, with its security fixes.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libstdc++6 nginx >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /etc/nginx
COPY --from=onnxruntime /onnxruntime /opt/foretype
COPY --from=build /foretype /opt/foretype/foretype
COPY nginx/nginx.conf nginx/serve /opt/foretype/nginx/
# A folder of the build context to have the model in the image; without it only the licence is copied.
ARG MODEL=
COPY ${MODEL:-LICENSE} /opt/foretype/model/
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
ENTRYPOINT ["/opt/foretype/nginx/serve"]
CMD ["serve"]

# ---- GPU: the same on CUDA, with TensorRT's libraries from the image that was named
FROM ${TENSORRT_IMAGE} AS tensorrt

FROM ${GPU_RUNTIME_IMAGE} AS gpu
# nginx as the base's release has it: pinned by the base, with its security fixes.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libstdc++6 nginx >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /etc/nginx
ARG TENSORRT_LIBRARIES=/usr/lib/x86_64-linux-gnu/libnv*.so*
COPY --from=tensorrt ${TENSORRT_LIBRARIES} /opt/tensorrt/
COPY --from=onnxruntime /onnxruntime /opt/foretype
COPY --from=build /foretype /opt/foretype/foretype
COPY nginx/nginx.conf nginx/serve /opt/foretype/nginx/
ARG MODEL=
COPY ${MODEL:-LICENSE} /opt/foretype/model/
ENV PATH=/opt/foretype:$PATH \
    LD_LIBRARY_PATH=/opt/tensorrt \
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
ENTRYPOINT ["/opt/foretype/nginx/serve"]
CMD ["serve"]
