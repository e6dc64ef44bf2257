"""Chooses the Python of Spark's workers: PYSPARK_PYTHON, else `python3` of PATH, which may have no Penstock."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark import SparkContext

from penstock.spark.errors import WrongPython

DEFAULT = "python3"  # of Spark
CHECK_TIMEOUT_S = 30.0
_FINDS_PENSTOCK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('penstock') is None)"


def choose_python() -> None:
    """Set PYSPARK_PYTHON to this Python if it is not set. Call it before Spark starts."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def give_workers_python() -> None:
    """Set the workers' Python to this one, if Spark runs on this machine and theirs is the default. Raises
    WrongPython.
    """
    context = SparkContext._active_spark_context
    if context is None or not (context.master or "").startswith("local"):  # Spark Connect, or a cluster
        return
    theirs = shutil.which(context.pythonExec) or context.pythonExec
    if Path(theirs).absolute() == Path(sys.executable).absolute():
        return
    if context.pythonExec == DEFAULT:  # not chosen by the user
        context.pythonExec = sys.executable
    elif not _has_penstock(theirs):
        raise WrongPython(theirs, sys.executable)


def _has_penstock(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", _FINDS_PENSTOCK], timeout=CHECK_TIMEOUT_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
