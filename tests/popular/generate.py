"""A log of queries as people leave it behind: a few queries often, many seldom, and rows that are hard to read.

usage: generate.py FOLDER ROWS [SEED]     writes log.jsonl, log.csv and log.tsv: the same log, three times
"""

import csv
import json
import random
import sys
from pathlib import Path

WORDS = Path(__file__).resolve().parents[2] / "models/demo/queries/popular.tsv"
# What engines read, sort or print in different ways if they are not told otherwise.
HARD = [
    "", " ", "\t", "\u3000", "\x00", "heat\tpump", "heat\u00a0pump", "  heat   pump ", "heat\r\npump", "heat\u2028pump",
    '"heat pump"', 'say "so"', '"', "'", "\\", "\\N", "\\t", "a,b", "a;b", "null", "NULL", "{}", "0", "-1", "1e5",
    "Heat Pump", "wärmepumpe", "wa\u0308rmepumpe", "ヒート ポンプ", "\ufeffheat pump", "тепловой насос", "🔥 pump",
    "\U0010ffff", "\uffff", "z", "é", "\x7f", "\x85pump", "pump\x9f", "\u200bpump", "ß", "SS", "%s", "$1", "#",
    "-- comment", "0x1", "a" * 2000,
]  # fmt: skip


def rows(count, seed):
    """Queries with the uses of each row."""
    draw = random.Random(seed)
    known = [line.rsplit("\t", 1)[0] for line in WORDS.read_text().splitlines()]
    for _ in range(count):
        kind = draw.random()
        if kind < 0.02:
            query = draw.choice(HARD)
        elif kind < 0.7:
            # Few queries are most of a log.
            query = known[int(len(known) * draw.random() ** 4)]
        else:
            query = f"{draw.choice(known)} {int(draw.paretovariate(0.6)) % 100_000}"
        yield query, draw.choice((0, 1, 1, 1, 2, 7))


def main():
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int((sys.argv[3:] or ["30"])[0])
    options = {"mode": "w", "encoding": "utf-8", "newline": ""}
    with (
        (folder / "log.jsonl").open(**options) as objects,
        (folder / "log.csv").open(**options) as fields,
        (folder / "log.tsv").open(**options) as tabs,
    ):
        quoted = csv.writer(fields, quoting=csv.QUOTE_ALL)
        quoted.writerow(("when", "query", "uses"))
        for number, (query, uses) in enumerate(rows(count, seed)):
            objects.write(json.dumps({"query": query, "uses": uses}, ensure_ascii=number % 2 == 0) + "\n")
            quoted.writerow((number, query, uses))
            # A field of TSV can't hold what ends it.
            tabs.write(f"{query.translate({9: 32, 10: 32, 13: 32})}\t{uses}\n")


main()
