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

# shellcheck source=tools/install.sh
. tools/install.sh
needs nodejs command -v node
needs npm command -v npm
needs chromium command -v chromium

# The tests run where their modules are, outside the repository. A lock file that is there says that the installation was complete.
modules=$target_dir/page-tests
mkdir -p "$modules"
if ! cmp -s "$here/package-lock.json" "$modules/installed.json"; then
    cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$modules/"
    npm --prefix "$modules" ci --silent --ignore-scripts
    cp "$here/package-lock.json" "$modules/installed.json"
fi
cp "$here"/*.js "$here/package.json" "$modules/"

suite=page
# shellcheck source=tests/lib/server.sh
. tests/lib/server.sh
start_server "$binary" serve --model models/demo --page --port 0 --cache "$scratch/cache"

only=()
if [ -n "${PAGE_PICTURE:-}" ]; then
    mkdir -p "$(dirname "$PAGE_PICTURE")"
    PAGE_PICTURE=$(realpath "$PAGE_PICTURE")
    export PAGE_PICTURE
    only=(--test-name-pattern "the README's picture")
fi
PAGE_SERVER=$url/ PAGE_PICTURES=$target_dir/page PAGE_BROWSER=$(command -v chromium) \
    node --test --test-reporter=spec "${only[@]}" "$modules/page.test.js"
