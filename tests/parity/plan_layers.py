"""Says which kernels a plan of TensorRT-RTX has: their number, and those of fused attention in prefill and in decoding.

    plan_layers.py PLAN

TensorRT-RTX keeps a list of its kernels in the plan, as text. Its inspector needs a GPU; this needs none.
"""

import collections
import re
import sys


def main() -> int:
    """Prints one line for the plan `sys.argv[1]`."""
    with open(sys.argv[1], "rb") as file:
        plan = file.read()
    names = [name.decode() for name in re.findall(rb"function=\{ name=([A-Za-z_0-9]+) ", plan)]
    fused = collections.Counter(name for name in names if "_mha_" in name)
    listed = ", ".join(f"{count} {name.strip('_')}" for name, count in sorted(fused.items()))
    print(f"{len(names)}, {listed or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
