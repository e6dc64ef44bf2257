"""Makes `python -m penstock` the same as `penstock`, also in a folder that has a `store` or `gateway` of its own.

`python -m` looks for modules in the working directory first. What lies there is not ours, unless Penstock itself does:
then this is a checkout, and what is installed goes before its sources, whose compiled parts may be missing.
"""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _leave_working_directory() -> None:
    if sys.flags.safe_path:
        return
    if Path(sys.path[0]).resolve() != Path(__file__).resolve().parent.parent:
        del sys.path[0]
    elif PathFinder.find_spec("penstock", sys.path[1:]) is not None:
        os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])


if __name__ == "__main__":
    _leave_working_directory()
    from penstock.cli import main

    main()
