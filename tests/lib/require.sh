# shellcheck shell=bash
# For `source`: what tests leave out is named and counted; see the crate tests/require, whose rules these are.

# skip WHAT WHY: leaves out what could be had here; with FORETYPE_REQUIRE=all that is a failure.
skip() {
    if [ "${FORETYPE_REQUIRE:-}" = all ]; then
        echo "$1: $2, and FORETYPE_REQUIRE=all asks for it" >&2
        exit 1
    fi
    absent "$1" "$2"
}

# absent WHAT WHY: leaves out what this machine can't have.
absent() {
    echo "SKIPPED $1: $2" >&2
    [ -z "${FORETYPE_SKIPPED:-}" ] || echo "$1: $2" >>"$FORETYPE_SKIPPED"
}
