#!/usr/bin/env python3
"""Puts what bench/fine_tuned.sh measured into one result file.

usage: fine_tuned.py FOLDER MEASURED.json OUT.json COMMAND

FOLDER has demo/measured.json and, of `foretype evaluate`, NAME.PRECISION/evaluate.txt and typos.SET/evaluate-typos.txt;
MEASURED.json is what the fine-tuning measured, and COMMAND is what was called.
"""

import json
import re
import sys
from pathlib import Path

import machine
from evaluations import first_table, share, typos


def quality(report: Path) -> list[dict]:
    """The lists of one model."""
    title, rows = first_table(report)
    queries = int(re.search(r"(\d+) queries a set", title)[1])
    return [
        {
            "set": row["set"],
            "queries": queries,
            "mrr": float(row["MRR@10"]),
            "saved": share(row["keystrokes saved"]),
        }
        for row in rows
    ]


def losses(measured: dict, when: str) -> dict[str, dict]:
    """The loss on all queries of each set."""
    return {row["set"]: row for row in measured["losses"] if row["when"] == when and not row["sample"]}


def main() -> None:
    folder, measured, out = map(Path, sys.argv[1:4])
    tuning = json.loads(measured.read_text())
    demo = json.loads((folder / "demo/measured.json").read_text())
    loss = {"demo": losses(demo, "before"), "smollm2": losses(tuning, "before"), "fine-tuned": losses(tuning, "after")}
    rows = [
        {"model": name, "precision": "f32" if precision == "none" else precision, **row}
        | {key: loss[name][row["set"]][key] for key in ("nats_per_token", "perplexity", "nats_per_character")}
        for name in loss
        for precision in ("int8", "none")
        if (report := folder / f"{name}.{precision}/evaluate.txt").exists()
        for row in quality(report)
    ]
    result = {
        "title": "SmolLM2-135M before and after fine-tuning on the demo's corpus, beside the demo model",
        "machine": machine.describe(),
        "command": sys.argv[4],
        "corpus": tuning["corpus"],
        "training": tuning["training"],
        "course": [row for row in tuning["losses"] if row["sample"]],
        "rows": rows,
        "typos": typos(folder),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")


main()
