#!/usr/bin/env python3
"""Puts what bench/accents.sh measured into one result file.

usage: accents.py FOLDER OUT.json COMMAND

FOLDER has typos.SET/evaluate-typos.txt of `foretype evaluate`; COMMAND is what was called.
"""

import json
import sys
from pathlib import Path

import machine
from evaluations import typos

folder, out = map(Path, sys.argv[1:3])
result = {
    "title": "Searches for French places, typed with and without accents",
    "machine": machine.describe(),
    "command": sys.argv[3],
    "typos": typos(folder),
}
out.write_text(json.dumps(result, indent=1) + "\n")
