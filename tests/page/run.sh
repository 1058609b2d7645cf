#!/usr/bin/env bash
# The page for people in a real Chromium, before a server with the demo model: keys, slow and broken servers, axe, and the time from
# a key to what it paints.
#
# usage: tests/page/run.sh TARGET_DIR [FORETYPE]     the build's folder, such as target, and the binary (TARGET_DIR/checked/foretype)
#
#   PAGE_P95_MS     limit of the time from key to paint (250; on a quiet machine 50 holds)
#   PAGE_PICTURE    only take the README's picture, into this file
#
# Screenshots are left in TARGET_DIR/page.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=$(cd "${1:?usage: tests/page/run.sh TARGET_DIR [FORETYPE]}" && pwd)
binary=$(realpath "${2:-$target_dir/checked/foretype}")
cd "$here/../.."

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}
needs_package() {
    command -v "$1" >/dev/null && return
    [ -n "${apt_updated:-}" ] || as_root apt-get update -qq
    apt_updated=1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}
needs_package node nodejs
needs_package npm npm
needs_package chromium chromium

# The tests run where their modules are, outside the repository. A lock file that is there says that the installation was complete.
modules=$target_dir/page-tests
mkdir -p "$modules"
if ! cmp -s "$here/package-lock.json" "$modules/installed.json"; then
    cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$modules/"
    npm --prefix "$modules" ci --silent --ignore-scripts
    cp "$here/package-lock.json" "$modules/installed.json"
fi
cp "$here"/*.js "$here/package.json" "$modules/"

scratch=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap finish EXIT

"$binary" serve --model models/demo --page --port 0 --cache "$scratch/cache" >"$scratch/out" 2>"$scratch/log" &
server=$!
url=
for _ in $(seq 600); do
    url=$(sed -nE 's/^foretype is ready on (http:[^ ,]*[0-9]).*/\1/p' "$scratch/out")
    [ -z "$url" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
if [ -z "$url" ]; then
    echo "page: the server did not start:" >&2
    cat "$scratch/log" >&2
    exit 1
fi

only=()
if [ -n "${PAGE_PICTURE:-}" ]; then
    mkdir -p "$(dirname "$PAGE_PICTURE")"
    PAGE_PICTURE=$(realpath "$PAGE_PICTURE")
    export PAGE_PICTURE
    only=(--test-name-pattern "the README's picture")
fi
PAGE_SERVER=$url/ PAGE_PICTURES=$target_dir/page PAGE_BROWSER=$(command -v chromium) \
    node --test --test-reporter=spec "${only[@]}" "$modules/page.test.js"
