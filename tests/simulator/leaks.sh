#!/usr/bin/env bash
# Engines come and go on the simulator, under valgrind: none may leave memory behind.
#
# usage: tests/simulator/leaks.sh TARGET_DIR     with the tests of the profile FORETYPE_PROFILE (checked) in it
set -euo pipefail
target=$(realpath "${1:?usage: tests/simulator/leaks.sh TARGET_DIR}")
cd "$(dirname "$0")/../.."
# shellcheck source=tools/install.sh
. tools/install.sh
needs valgrind command -v valgrind
needs libc6-dbg test -e /usr/lib/debug/.build-id
# The newest of the test binaries that has the test: `make test` has just built it.
test=tensorrt::engines_come_and_go_without_leaving_anything
suite=
while read -r binary; do
    # Not through a pipe: a reader that stops at the first match makes the writer fail.
    if grep -q "^$test: test" <<<"$("$binary" --list 2>/dev/null)"; then
        suite=$binary
        break
    fi
done < <(find "$target/${FORETYPE_PROFILE:-checked}/deps" -name 'suite-*' -type f -perm -u+x -printf '%T@ %p\n' | sort -rn | cut -d' ' -f2)
[ -n "$suite" ] || { echo "leaks: the tests are not built: run make test" >&2; exit 1; }
log=$target/leaks.log
# Lost is what nothing points to any more. What libraries keep for good is still pointed to.
FORETYPE_CYCLES=${FORETYPE_CYCLES:-10} valgrind --quiet --leak-check=full --show-leak-kinds=definite \
    --errors-for-leak-kinds=definite --error-exitcode=9 --undef-value-errors=no --log-file="$log" \
    --suppressions=tests/simulator/leaks.supp "$suite" --exact "$test" \
    | tee "$target/leaks.out" || { cat "$log"; exit 1; }
grep -q '^test result: ok. 1 passed' "$target/leaks.out"
echo "leaks: ${FORETYPE_CYCLES:-10} engines came and went, and nothing was lost"
