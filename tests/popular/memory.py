"""Runs a command and fails if its memory was more than so many MiB at any time.

usage: memory.py MIB COMMAND...
"""

import resource
import subprocess
import sys
import time

started = time.monotonic()
subprocess.run(sys.argv[2:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(f"at most {used:.0f} MiB, {time.monotonic() - started:.0f} s")
sys.exit(used > float(sys.argv[1]))
