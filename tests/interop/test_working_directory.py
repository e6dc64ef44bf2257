"""Processes that start in a folder with packages named like ours, and how they say in JSON that they are ready."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.programs import TIMEOUT_S, run
from tests.support.server_process import ServeOptions

PENSTOCK = str(Path(sys.executable).parent / "penstock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Each package in it ends the process that imports it."""
    for name in ("store", "gateway", "notify", "lightqueue", "loadtest"):
        make_package(tmp_path, name)
    return tmp_path


def make_package(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise SystemExit('not the package that was meant')\n")


def test_python_m_penstock_takes_nothing_from_the_working_directory(folder: Path) -> None:
    check_starts(folder, sys.executable, "-m", "penstock")


def test_the_command_takes_nothing_from_a_folder_with_a_penstock_of_its_own(folder: Path) -> None:
    make_package(folder, "penstock")
    check_starts(folder, PENSTOCK)
    check_starts(folder, sys.executable, "-P", "-m", "penstock")


def check_starts(folder: Path, *command: str) -> None:
    started = [*command, "serve", "--print-config"]
    done = subprocess.run(started, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done
    assert done.stderr == ""


@pytest.fixture(params=[(sys.executable, "-m", "penstock"), (PENSTOCK,)], ids=["python -m penstock", "penstock"])
def served(folder: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A store and a gateway, started in the folder, which has a `penstock` too where that is not what is started."""
    if request.param == (PENSTOCK,):
        make_package(folder, "penstock")
    where = ["--listen=mqtt://127.0.0.1:0", "--admin=127.0.0.1:0", f"--data={folder / 'data'}"]
    command = [*request.param, "serve", "--gateways=1", "--log-format=json", *where]
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
