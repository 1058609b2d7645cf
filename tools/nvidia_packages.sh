#!/usr/bin/env bash
# Installs what the gpu image needs of NVIDIA, from the package repository that the base image knows: TensorRT 11 for the base's CUDA, and,
# with CUDA 13, the libraries of ONNX Runtime's CUDA provider. apt keeps links as links, so that each library is in the image once.
#
# usage: nvidia_packages.sh CUDA_VERSION yes     such as 13.0.1; `yes` accepts NVIDIA's licences
set -euo pipefail
fail() { printf 'nvidia_packages: %s\n' "$*" >&2; exit 1; }

cuda=${1:-} accepted=${2:-}
[[ $cuda =~ ^(12|13)\.[0-9]+(\.[0-9]+)?$ ]] || fail "CUDA can't be '$cuda': TensorRT 11 is there for CUDA 12 and 13, such as 12.9.1 and 13.0.1"
[ "$accepted" = yes ] || fail "this installs TensorRT, CUDA libraries and cuDNN under NVIDIA's licences" \
    "(docs.nvidia.com/deeplearning/tensorrt/latest/reference/sla.html, docs.nvidia.com/cuda/eula," \
    "docs.nvidia.com/deeplearning/cudnn/backend/latest/reference/eula.html)." \
    "Read them, and accept them with --build-arg ACCEPT_NVIDIA_LICENCES=yes"
major=${cuda%%.*} minor=${cuda#*.}
suffix=$major-${minor%%.*}

apt-get update -qq
# The repository has each version for several CUDAs, and apt alone would take the highest: another CUDA's.
version=$(apt-cache madison libnvinfer11 | awk -v cuda="+cuda$major." '$3 ~ /^11\./ && index($3, cuda) { print $3 }' | sort -V | tail -1)
[ -n "$version" ] || fail "the package repository of this image has no TensorRT 11 for CUDA $major: libnvinfer11 has" \
    "$(apt-cache madison libnvinfer11 | awk '{ print $3 }' | paste -sd ' ')"
packages=("libnvinfer11=$version" "libnvonnxparsers11=$version" "cuda-nvrtc-$suffix")
if [ "$major" = 13 ]; then
    packages+=("cuda-cudart-$suffix" "libcublas-$suffix" "libcufft-$suffix" "libcurand-$suffix" "libnvjitlink-$suffix" "libcudnn9-cuda-$major")
fi
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/*
# The libraries of CUDA are where the system's loader doesn't look by itself.
printf '%s\n' "/usr/local/cuda-$major.${minor%%.*}/lib64" "/usr/local/cuda-$major.${minor%%.*}/targets/x86_64-linux/lib" >/etc/ld.so.conf.d/cuda.conf
ldconfig
