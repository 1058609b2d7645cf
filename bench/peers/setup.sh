#!/usr/bin/env bash
# Installs the engines that foretype is compared with, each into a Python environment of its own, and converts a checkpoint for
# each. Safe to run again: what is there is left alone. An engine that can't be installed or converted leaves `failed.txt` with
# the reason where its files would be, and the tables name it with that; to try it again, delete the file.
#
# usage: bench/peers/setup.sh FOLDER [CHECKPOINT NAME]...     environments into FOLDER, models into FOLDER/models/NAME
#
#   FORETYPE_TORCH_VENV   an environment that has PyTorch and transformers, to be used instead of installing 5 GB again
#   PEERS                 the environments to install, in order (default: torch onnxruntime ctranslate2 openvino llama)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?usage: bench/peers/setup.sh FOLDER [CHECKPOINT NAME]...}
shift
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
read -r -a peers <<<"${PEERS:-torch onnxruntime ctranslate2 openvino llama}"

say() { printf 'peers: %s\n' "$*" >&2; }

# shellcheck source=tools/install.sh
. "$here/../../tools/install.sh"
# The last line of a log that says something, as the reason.
reason() { { grep -v '^[[:space:]]*$' "$1" || echo 'it said nothing'; } | tail -n 1 | cut -c 1-200; }

site_packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# In a condition `set -e` means nothing, so each step says what follows from its failure.
make_environment() {
    local name=$1 venv=$2 list=$here/requirements/$1.txt
    # llama.cpp comes as source.
    if [ "$name" = llama ]; then needs g++ command -v g++ || return; fi
    python3 -m venv "$venv" || return
    if [ "$name" = torch ] && [ -n "${FORETYPE_TORCH_VENV:-}" ]; then
        site_packages "$FORETYPE_TORCH_VENV" >"$(site_packages "$venv")/lent.pth" || return
        list=$here/requirements/torch-lent.txt
    fi
    # Of llama.cpp only the library: neither its images nor its server.
    CMAKE_ARGS="-DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_BUILD_COMMON=OFF ${CMAKE_ARGS:-}" "$venv/bin/pip" install \
        --quiet --disable-pip-version-check --no-cache-dir --require-hashes --requirement "$list" || return
    "$venv/bin/pip" freeze >"$venv/installed.partial" || return
    mv "$venv/installed.partial" "$venv/installed.txt"
}

install() {
    local name=$1 venv=$folder/$1 log=$folder/$1.log
    [ ! -e "$venv/installed.txt" ] && [ ! -e "$venv/failed.txt" ] || return 0
    say "installing $name"
    mkdir -p "$venv"
    if make_environment "$name" "$venv" >"$log" 2>&1; then
        rm -f "$log"
    else
        reason "$log" >"$venv/failed.txt"
        say "$name can't be installed: $(cat "$venv/failed.txt")"
    fi
}

# convert ENVIRONMENT SCRIPT CHECKPOINT OUT: runs SCRIPT with PyTorch beside the environment's own packages.
convert() {
    local name=$1 script=$2 checkpoint=$3 out=$4
    [ -e "$folder/$name/installed.txt" ] || return 0
    [ ! -e "$out/done.txt" ] && [ ! -e "$out/failed.txt" ] || return 0
    say "converting $checkpoint with $script"
    mkdir -p "$out"
    local torch=
    [ -e "$folder/torch/installed.txt" ] && torch=$(torch_path)
    if PYTHONPATH=$torch "$folder/$name/bin/python" "$here/$script" "$checkpoint" "$out" >"$out/convert.log" 2>&1; then
        date -u +%FT%TZ >"$out/done.txt"
    else
        reason "$out/convert.log" >"$out/failed.txt"
        say "$script failed: $(cat "$out/failed.txt")"
    fi
}

torch_path() {
    local own
    own=$(site_packages "$folder/torch")
    if [ -e "$own/lent.pth" ]; then own=$own:$(cat "$own/lent.pth"); fi
    printf '%s\n' "$own"
}

for name in "${peers[@]}"; do install "$name"; done
while [ $# -ge 2 ]; do
    checkpoint=$1 models=$folder/models/$2
    shift 2
    mkdir -p "$models"
    printf '%s\n' "$(cd "$checkpoint" && pwd)" >"$models/checkpoint.txt"
    convert torch convert_onnx.py "$checkpoint" "$models/onnx"
    convert onnxruntime convert_ort.py "$checkpoint" "$models/ort"
    convert ctranslate2 convert_ctranslate2.py "$checkpoint" "$models/ctranslate2"
    convert openvino convert_openvino.py "$checkpoint" "$models/openvino"
    convert llama convert_gguf.py "$checkpoint" "$models/gguf"
done
