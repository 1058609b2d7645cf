#!/usr/bin/env bash
# Makes a stand-in for NVIDIA's CUDA base: an image whose package repository has packages with the names, versions and files of NVIDIA's.
# The libraries in them are empty but for random bytes, each with the link that the loader looks for.
#
# usage: tests/container/standin_nvidia.sh RUNTIME_IMAGE     prints nothing; leaves foretype-standin-nvidia in the engine
set -euo pipefail
runtime=${1:?usage: tests/container/standin_nvidia.sh RUNTIME_IMAGE}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
repository=$context/repository
mkdir "$repository"

# package NAME VERSION LIBRARY SONAME MIB [FOLDER]
package() {
    local name=$1 version=$2 library=$3 soname=$4 mib=$5 folder=${6:-/usr/lib/x86_64-linux-gnu} root=$context/root
    rm -rf "$root"
    mkdir -p "$root/DEBIAN" "$root$folder"
    cc -shared -nostdlib "-Wl,-soname,$soname" -x c /dev/null -o "$root$folder/$library"
    head -c "${mib}M" /dev/urandom >>"$root$folder/$library"
    ln -s "$library" "$root$folder/$soname"
    printf '%s\n' "Package: $name" "Version: $version" 'Architecture: amd64' 'Maintainer: nobody' 'Description: a stand-in' >"$root/DEBIAN/control"
    dpkg-deb --build --root-owner-group "$root" "$repository/${name}_${version//[^a-zA-Z0-9.]/-}.deb" >/dev/null
}

for version in 11.3.0.99-1+cuda13.4 11.4.0.106-1+cuda12.9 11.4.0.106-1+cuda13.4; do
    package libnvinfer11 "$version" libnvinfer.so.11.4.0 libnvinfer.so.11 8
    package libnvonnxparsers11 "$version" libnvonnxparser.so.11.4.0 libnvonnxparser.so.11 2
done
for cuda in 12.9 13.0; do
    suffix=${cuda/./-} folder=/usr/local/cuda-$cuda/lib64
    for library in cuda-nvrtc:libnvrtc cuda-cudart:libcudart libcublas:libcublas libcufft:libcufft libcurand:libcurand libnvjitlink:libnvJitLink; do
        package "${library%%:*}-$suffix" "$cuda.1-1" "${library##*:}.so.$cuda.1" "${library##*:}.so.${cuda%%.*}" 1 "$folder"
    done
    package "libcudnn9-cuda-${cuda%%.*}" 9.28.1-1 libcudnn.so.9.28.1 libcudnn.so.9 1
done
for deb in "$repository"/*.deb; do
    dpkg-deb --field "$deb"
    printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "${deb##*/}" "$(stat -c %s "$deb")" "$(sha256sum "$deb" | cut -d ' ' -f 1)"
done >"$repository/Packages"

cat >"$context/Dockerfile" <<DOCKERFILE
FROM $runtime
COPY repository /opt/repository
RUN echo 'deb [trusted=yes] file:/opt/repository ./' >/etc/apt/sources.list.d/nvidia.list
DOCKERFILE
rm -rf "$context/root"
docker build --quiet --tag foretype-standin-nvidia "$context" >/dev/null
