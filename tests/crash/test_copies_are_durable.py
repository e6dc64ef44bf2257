"""What is copied from an index's checkpoint is on the disk before it gets its name, or a command says it is done.

The files' calls are recorded, and the folder is judged that a power cut leaves if nothing unsynced comes to the disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.power.recording import Recorder, read_recording
from loadtest.power.volume import Volume
from store.mending.backup import backup
from store.mending.restore import restore
from tests.support.server_process import ROOT
from tests.support.stores import KEPT_BYTES, Stores, fill, publish, run_upkeep, subscribe

BRING_AND_START = """
import os, shutil, sys
from pathlib import Path
from lightqueue.message_store import MessageStore
from store.files.segment import sync_folder
from store.settings import StoreSettings
source, data = map(Path, sys.argv[1:])
shutil.copytree(source, data)
for path in sorted(data.rglob("*"), reverse=True):
    sync_folder(path)  # a file as well
sync_folder(data)
sync_folder(data.parent)
MessageStore(StoreSettings(data=data, reserve_bytes=0))
os.kill(os.getpid(), 9)
"""
BRING_AND_REPAIR = (
    BRING_AND_START.partition("MessageStore(")[0]
    + """
from lightqueue.mending.repairing import repair_folder
repair_folder(data, with_index=True)
"""
)
BACK_UP = """
import errno, os, sys
from pathlib import Path
from store.mending.backup import backup
def no_link(*_):
    raise OSError(errno.EXDEV, "as from another file system")
os.link = no_link
backup(*map(Path, sys.argv[1:]))
"""


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", index_write_buffer_bytes=64 << 10)
    yield stores
    stores.close()


@pytest.fixture
def data(stores: Stores, tmp_path: Path) -> Path:
    """A folder of whose log retention has dropped the beginning."""
    store = stores(retention_bytes=KEPT_BYTES)
    subscribe(store, "archive", ["t/+"])
    publish(store, "t/1", b"kept", retain=True)
    fill(store, 6)
    run_upkeep(store)
    assert store.log.base > 0
    publish(store, "t/1", b"later")
    stores.stop(store)
    return tmp_path / "data"


def certain(tmp_path: Path, *command: object) -> Path:
    """What a power cut leaves of a folder in which a command was at work."""
    root = tmp_path / "recorded"
    root.mkdir()
    recorder = Recorder(tmp_path, root)
    run = [sys.executable, *map(str, command)]
    environment = os.environ | recorder.environment | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, -9), done.stderr
    volume = Volume()
    for event in read_recording(recorder.file):
        volume.follow(event)
    volume.write_certain(tmp_path / "image")
    return tmp_path / "image"


def is_as_it_was(stores: Stores, data: Path, caplog: pytest.LogCaptureFixture, of_an_index: str) -> None:
    """`of_an_index`: what a start may say of one."""
    with caplog.at_level(logging.WARNING, "penstock.store"):
        store = stores(data)
    told = [record.getMessage() for record in caplog.records if str(data / "index") in record.getMessage()]
    assert [each for each in told if not of_an_index or of_an_index not in each] == []
    assert store.sessions.get("archive") is not None
    assert store.retained.get(b"t/1") is not None
    assert store.queues.stored_topic(b"t/1").next_offset == 2


@pytest.mark.parametrize("where", ["new", "not/yet/there/new"])
def test_a_restored_folder(
    stores: Stores, data: Path, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    backup(data, tmp_path / "backup")
    restore = ("-m", "penstock", "store", "restore", tmp_path / "backup", tmp_path / "recorded" / where)
    is_as_it_was(stores, certain(tmp_path, *restore, "--skip-bytes", 0) / where, caplog, "is rebuilt from")


def test_an_index_that_a_start_takes_from_the_checkpoint(
    stores: Stores, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(data / "index")
    image = certain(tmp_path, "-c", BRING_AND_START, data, tmp_path / "recorded" / "data")
    assert (image / "data" / "index").is_dir()
    is_as_it_was(stores, image / "data", caplog, "")


def test_an_index_that_a_repair_builds_from_the_checkpoint(
    stores: Stores, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(data / "index")
    image = certain(tmp_path, "-c", BRING_AND_REPAIR, data, tmp_path / "recorded" / "data")
    is_as_it_was(stores, image / "data", caplog, "")


def test_a_backup(stores: Stores, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = certain(tmp_path, "-c", BACK_UP, data, tmp_path / "recorded" / "not" / "yet" / "backup")
    restore(image / "not" / "yet" / "backup", tmp_path / "new", skip_bytes=0)
    is_as_it_was(stores, tmp_path / "new", caplog, "is rebuilt from")
