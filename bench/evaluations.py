"""Reads the reports of `foretype evaluate`."""

import re
from itertools import takewhile
from pathlib import Path


def first_table(report: Path) -> tuple[str, list[dict]]:
    """The title of a report of `foretype evaluate`, and the rows of its first table."""
    title, _, *lines = report.read_text().splitlines()
    head, *body = (re.split(r" {2,}", line.strip()) for line in takewhile(str.strip, lines))
    return title, [dict(zip(head, cells)) for cells in body]


def share(cell: str) -> float:
    return round(float(cell.removesuffix(" %")) / 100, 3)


def typos(folder: Path) -> list[dict]:
    """The rows of the reports on queries with errors and in other styles."""
    found = []
    for report in sorted(folder.glob("typos.*/evaluate-typos.txt")):
        title, rows = first_table(report)
        name, queries = re.match(r"(\w+), (\d+) queries", title).groups()
        for row in rows:
            mean, low, high = re.findall(r"\d\.\d+", row["MRR@10 [95 %]"])
            found.append({
                "set": name, "queries": int(queries), "style": row["typed"], "lists": int(row["lists"]),
                "mrr": {"mean": float(mean), "low": float(low), "high": float(high)},
                "of_right": share(row["of the right text's"]), "same": share(row["the same list"]),
                "lost": share(row["certain first lost"]),
            })  # fmt: skip
    return found
