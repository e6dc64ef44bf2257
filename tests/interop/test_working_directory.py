"""Processes that start in a folder with packages named like ours, and how they say in JSON that they are ready."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.programs import TIMEOUT_S, run
from tests.support.server_process import ServeOptions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Each package in it ends the process that imports it."""
    for name in ("store", "gateway", "notify", "lightqueue", "loadtest"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not the package that was meant')\n")
    return tmp_path


def test_python_m_penstock_takes_nothing_from_the_working_directory(folder: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--print-config"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done
    assert done.stderr == ""


@pytest.fixture
def served(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A store and a gateway, started in the folder."""
    where = ["--listen=mqtt://127.0.0.1:0", "--admin=127.0.0.1:0", f"--data={folder / 'data'}"]
    command = [sys.executable, "-m", "penstock", "serve", "--gateways=1", "--log-format=json", *where]
    environment = ServeOptions().environment()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_child_processes_take_nothing_from_it_and_say_so_in_json(served: subprocess.Popen[str], folder: Path) -> None:
    assert served.stdout is not None
    said = [json.loads(served.stdout.readline()) for _ in range(2)]
    assert [each["event"] for each in said] == ["admin", "ready"], (folder / "log").read_text()
    admin, ready = said
    assert admin["url"].startswith("http://127.0.0.1:")
    assert ready["gateways"] == 1
    assert ready["data"] == str(folder / "data")
    assert {"time", "level", "message"} <= ready.keys()
    run("mosquitto_pub", "-p", ready["url"].rpartition(":")[2], "-t", "a", "-m", "x", "-q", "1")
