"""Two processes never have one data folder open."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from store.errors import DamageFound, FolderInUse, FolderUnusable
from store.files.folder import DataFolder
from tests.support.server_process import ROOT
from tests.support.stores import small

OPEN_AND_WAIT = """
import sys
from pathlib import Path
from store.files.folder import DataFolder
try:
    folder = DataFolder(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error, flush=True)
else:
    print("opened", flush=True)
    sys.stdin.read()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    """A process that opens the folder, says how it went, and stays until its stdin is closed."""
    command = [sys.executable, "-c", OPEN_AND_WAIT, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has tmp_path open."""
    process = start(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "opened\n"
    yield process
    process.kill()
    process.communicate()


def test_a_folder_open_in_another_process_is_refused(other: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(FolderInUse, match=f"in use by another penstock process .pid {other.pid}.") as caught:
        MessageStore(small(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert not (tmp_path / "index").exists()


def test_folder_is_free_once_its_process_was_killed(other: subprocess.Popen[str], tmp_path: Path) -> None:
    other.kill()
    other.wait()
    MessageStore(small(tmp_path)).close()


def test_open_folder_refuses_another_process(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path))
    refused, _ = start(tmp_path).communicate()
    assert refused.startswith("FolderInUse")
    store.close()
    opened, _ = start(tmp_path).communicate()
    assert opened == "opened\n"


def test_a_failed_start_gives_the_folder_back(tmp_path: Path) -> None:
    MessageStore(small(tmp_path)).close()
    segment = tmp_path / "log" / f"{0:020}.log"
    good = segment.read_bytes()
    segment.write_bytes(b"bad" + good[3:])
    with pytest.raises(DamageFound, match="wrong magic"):
        MessageStore(small(tmp_path, on_damage="refuse"))
    segment.write_bytes(good)
    MessageStore(small(tmp_path)).close()


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable, match="file"):
        DataFolder(tmp_path / "file")
