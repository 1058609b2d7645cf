#!/usr/bin/env python3
"""The same as `python3 -m deploy`, from any folder."""

import sys
from pathlib import Path

# The folder of this file has a module called deploy, which is this file; the package is one folder up.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from deploy.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
