"""Where a measurement of these programs was made, as machine.rs says it of foretype-bench's."""

import os
import platform
import subprocess
from pathlib import Path


def describe() -> dict:
    """The processor's name for itself, cores, memory, and the commit of the working tree."""

    def field(path, name):
        lines = (line.partition(":") for line in Path(path).read_text().splitlines())
        return next((value.strip() for key, _, value in lines if key.strip() == name), None)

    git = ["git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.check_output(git, cwd=Path(__file__).parent, text=True).strip()
    return {
        "cpu": field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(field("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "commit": commit,
    }
