#!/usr/bin/env python3
"""Measures the image: its size, how soon a container is healthy, and what it takes in memory. Prints a table.

usage: figures.py BASE_IMAGE [BUNDLE_OF_124M]
"""

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from conftest import DEMO, IMAGE, Container, docker

STARTS = 7


def size(image):
    return int(docker("inspect", "--format", "{{.Size}}", image).stdout)


def memory(container):
    """Of all the container's processes: what they have for themselves and their share of what they share, in MB."""
    pids = docker("top", container.name, "-eo", "pid").stdout.split()[1:]
    total = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1])
    return total / 1000


def start(model):
    """Seconds from `docker run` to a healthy ping, and idle memory."""
    with Container(model=model) as container:
        container.healthy(120)
        seconds = time.monotonic() - container.started
        time.sleep(2)
        return seconds, memory(container)


def main():
    base, *bundles = sys.argv[1:]
    rows = [
        ("image, MB", f"{size(IMAGE) / 1e6:.0f}"),
        ("... over its base", f"{(size(IMAGE) - size(base)) / 1e6:.0f}"),
    ]
    for name, model in [("demo checkpoint", DEMO), *(("124M fp32 bundle", Path(bundle)) for bundle in bundles)]:
        found = [start(model) for _ in range(STARTS)]
        seconds = [taken for taken, _ in found]
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        rows.append((f"docker run to healthy, {name}, s, median of {STARTS}", spread))
        rows.append((f"idle memory, {name}, MB", f"{statistics.median(taken for _, taken in found):.0f}"))
    processor = subprocess.run(["sh", "-c", "nproc; sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1"], capture_output=True, text=True)
    print("\n| container, {} cores of {} | |\n|---|---|".format(*processor.stdout.strip().splitlines()))
    for row in rows:
        print("| {} | {} |".format(*row))


if __name__ == "__main__":
    main()
