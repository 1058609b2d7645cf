#!/usr/bin/env python3
"""Writes the table of mistyped texts in docs/api.md, from the answers of a server with the demo model.

usage: tools/typing_examples.py [URL]     the server, http://127.0.0.1:8080 without it

The table stands between <!-- table: typing-examples --> and <!-- /table -->.
"""

import json
import re
import sys
import urllib.request
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs/api.md"
MARK = re.compile(r"(<!-- table: typing-examples -->\n).*?(<!-- /table -->)", re.S)
TEXTS = [
    "wirless char", "Wireless Char", "WIRELESS CHAR", "lithum ion", "battrey man", "heat exchnager", "SOLAR PAN", "ｌｉｔｈｉｕｍ",
    "TTL:(heta exch", "quantm",
]  # fmt: skip
HEAD = "| typed | `text` | `edits` | `meant` | `probability` |\n|---|---|---|---|---|\n"


def suggestions(server, text):
    """The three best suggestions for a text."""
    body = json.dumps({"input": text, "suggestions": 3, "tolerance": "auto"}).encode()
    request = urllib.request.Request(f"{server}/invocations", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["suggestions"]


def table(server):
    lines = []
    for text in TEXTS:
        for rank, found in enumerate(suggestions(server, text)):
            typed = "" if rank else f"`{text}`"
            lines.append(f"| {typed} | `{found['text']}` | {found['edits']} | `{found['meant']}` | {found['probability']:.2f} |\n")
    return HEAD + "".join(lines)


def main():
    server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    written, count = MARK.subn(lambda mark: mark[1] + table(server) + mark[2], DOCUMENT.read_text())
    if count != 1:
        sys.exit(f"{DOCUMENT} has {count} places for the table")
    DOCUMENT.write_text(written)


if __name__ == "__main__":
    main()
