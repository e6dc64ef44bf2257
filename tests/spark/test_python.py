"""Jobs that are started as `venv/bin/python job.py`: `python3` of PATH has neither PySpark nor Penstock then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.log.commitlog import CommitLog
from tests.spark.session import DEBIAN_JAVA, environment
from tests.support.stores import batch_of, small

TIMEOUT_S = 120.0
SESSION = """
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
"""
COUNT = "print('rows', spark.read.format('penstock').load({folder!r}).count())\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "log").mkdir(parents=True)
    log = CommitLog(tmp_path / "data" / "log", small(tmp_path / "data"))
    log.append(batch_of(b"x", topic=b"n"))
    log.close()
    return tmp_path / "data"


def job(program: str, folder: Path, tmp_path: Path, **added: str) -> subprocess.CompletedProcess[str]:
    """It runs with a PATH where `python3` is a Python that has nothing of what it needs."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    python3 = tmp_path / "bin" / "python3"
    python3.write_text("#!/bin/sh\necho a Python without Penstock >&2\nexit 1\n")
    python3.chmod(0o755)
    (tmp_path / "job.py").write_text(program.format(folder=str(folder)))
    variables = {name: value for name, value in environment().items() if name != "PYSPARK_PYTHON"}
    variables |= {"PATH": f"{tmp_path / 'bin'}:{DEBIAN_JAVA / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)} | added
    if "JAVA_HOME" in os.environ:
        variables["JAVA_HOME"] = os.environ["JAVA_HOME"]
    command = [sys.executable, str(tmp_path / "job.py")]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_an_import_before_the_session_is_enough(folder: Path, tmp_path: Path) -> None:
    program = "import penstock.spark\n" + SESSION + "penstock.spark.register(spark)\n" + COUNT
    assert "rows 1" in job(program, folder, tmp_path).stdout


@pytest.mark.nightly
def test_a_session_that_was_there_first(folder: Path, tmp_path: Path) -> None:
    program = SESSION + "import penstock.spark\npenstock.spark.register(spark)\n" + COUNT
    assert "rows 1" in job(program, folder, tmp_path).stdout


def test_a_python_that_was_chosen_and_has_no_penstock(folder: Path, tmp_path: Path) -> None:
    program = SESSION + "import penstock.spark\npenstock.spark.register(spark)\n" + COUNT
    done = job(program, folder, tmp_path, PYSPARK_PYTHON=str(tmp_path / "bin" / "python3"))
    assert done.returncode == 1
    assert f"{tmp_path / 'bin' / 'python3'}, which has no Penstock: unset PYSPARK_PYTHON, or set it to" in done.stderr
