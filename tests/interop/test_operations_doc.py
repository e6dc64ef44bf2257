"""The commands for a data folder in docs/operations.md run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from store.files.segment import segment_paths
from tests.support.injuries import make_store
from tests.support.server_process import ROOT
from tests.support.stores import flip

PAGE = (ROOT / "docs" / "operations.md").read_text()


def commands_of(heading: str) -> list[str]:
    """The lines of the shell blocks of a section."""
    section = PAGE.split(f"\n### {heading}\n")[1].split("\n### ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line.replace("/backup/", f"{folder}/backup/"), comments=True)
    assert words[0] == "penstock"
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def starts(line: str, folder: Path) -> str:
    """The line that says that the server is ready."""
    command = [sys.executable, "-m", *shlex.split(line), "--listen", "mqtt://127.0.0.1:0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        server.terminate()
    return ready


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with the data folder of the page."""
    make_store(tmp_path / "penstock-data")
    return tmp_path


def test_check(folder: Path) -> None:
    (line,) = commands_of("Is a data folder intact?")
    done = run(line, folder)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing is damaged")


def test_upgrade(folder: Path) -> None:
    backup, check, serve = commands_of("Upgrade and rollback")
    assert (run(backup, folder).returncode, run(check, folder).returncode) == (0, 0)
    assert starts(serve, folder).startswith("ready mqtt://127.0.0.1:")


def test_backup_restore_and_repair(folder: Path) -> None:
    backup, *restores, serve = commands_of("Backup and restore")
    assert run(backup, folder).returncode == 0
    for line in restores:
        done = run(line, folder)
        assert done.returncode == 0, done.stdout + done.stderr
    assert starts(serve, folder).startswith("ready mqtt://127.0.0.1:")
    segment_paths(folder / "penstock-data" / "log")[1].unlink()
    flip(segment_paths(folder / "penstock-data" / "log")[0], 5000)
    (check,) = commands_of("Is a data folder intact?")
    assert run(check, folder).returncode == 1
    (repair,) = commands_of("Repair")
    run(repair, folder)
    done = run(repair, folder)
    lost = [line for line in done.stdout.splitlines() if line.startswith("still lost")]
    assert len(lost) == 1  # the byte that was flipped: the backup's file is the same, by a hard link
    assert run(check, folder).returncode == 0
