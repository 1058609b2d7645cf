"""Runs a command, and writes its wall seconds, the peak resident MiB of its processes and its CPU seconds to a file.

    measure.py FILE COMMAND [ARGUMENT ...]

The peak is the largest process's. It counts the pages of files mapped into memory, which the kernel may take back.
Exits with the command's status.
"""

import resource
import subprocess
import sys
import time


def main() -> int:
    """Runs `sys.argv[2:]`; one line, `SECONDS MIB CPU_SECONDS`, goes to `sys.argv[1]`."""
    started = time.monotonic()
    status = subprocess.run(sys.argv[2:], check=False).returncode
    seconds = time.monotonic() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak_mib = used.ru_maxrss / 1024  # Linux counts in KiB
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        print(f"{seconds:.1f} {peak_mib:.0f} {used.ru_utime + used.ru_stime:.1f}", file=file)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
