#!/usr/bin/env bash
# The balancers nginx and HAProxy, as deploy/balance configures them, in front of four real servers of the demo model.
#
# usage: tests/balance/run.sh TARGET_DIR     the folder that the binary was built into, such as target/checked
#
#   BALANCE_PEOPLE, BALANCE_KEYS  people who type (60), and the keys of each (16)
#   BALANCE_RESULT                a file for the figures as JSON
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=$(cd "${1:?usage: tests/balance/run.sh TARGET_DIR}" && pwd)
cd "$here/../.."

# shellcheck source=tools/install.sh
. tools/install.sh
needs nginx-light test -x /usr/sbin/nginx
needs haproxy test -x /usr/sbin/haproxy
needs python3 python3 --version
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The files as they are, without this test's changes.
/usr/sbin/haproxy -c -q -f deploy/balance/haproxy.cfg
/usr/sbin/nginx -t -q -p "$scratch" -c "$PWD/deploy/balance/nginx.conf" -g "pid $scratch/nginx.pid;"
PYTHONDONTWRITEBYTECODE=1 python3 "$here/balance.py" "$target_dir/foretype" "$scratch"
echo "balance: all is well"
