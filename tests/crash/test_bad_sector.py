"""A disk that does not give back a part of a segment: a start names it, and serves all that can be read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.preloaded import compile_preloaded
from store.files.segment import segment_paths
from tests.conftest import ServerFactory
from tests.crash.test_damaged_log import Subscriber, messages_of, publish
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

SOURCE = Path(__file__).with_name("bad_sector.c")
BLOCK_BYTES = 4096


def unreadable(folder: Path, file: Path, start: int, end: int) -> dict[str, str]:
    """The environment of a process that cannot read these bytes of a file."""
    library = folder / "bad_sector.so"
    compile_preloaded(SOURCE, library)
    bytes_of = {"BAD_START": str(start), "BAD_END": str(end)}
    return {"LD_PRELOAD": str(library), "BAD_INODE": str(os.stat(file).st_ino), **bytes_of}


def checked(server: PenstockServer, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "penstock", "store", "check", str(server.data)]
    return subprocess.run(run, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("what", ["a block", "the header", "the file"])
def test_unreadable_sector_is_damage(
    penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path, what: str
) -> None:
    server = penstock_server(flush="sync", settings=small)
    Subscriber(server).close()
    payloads = publish(server)
    server.kill()
    segment = [path for path in segment_paths(server.data / "log") if len(messages_of(path)) > 50][1]
    block = messages_of(segment)[20][0] // BLOCK_BYTES * BLOCK_BYTES
    size = segment.stat().st_size
    start, end = {"a block": (block, block + BLOCK_BYTES), "the header": (0, 64), "the file": (0, size)}[what]
    lost = {
        payload
        for position, payload in messages_of(segment)
        if what != "the header" and position < end and start < position + len(payload) + 100
    }
    assert bool(lost) is (what != "the header")
    environment = unreadable(tmp_path, segment, start, end)
    if what != "the header":
        shown = checked(server, environment)
        assert shown.returncode == 1, shown.stdout + shown.stderr
        assert "input/output error" in " ".join(shown.stdout.split())
    server.prefix = ("env", *(f"{name}={value}" for name, value in environment.items()))
    server.restart()
    assert what == "the header" or "cannot be read: input/output error" in server.log_text()
    subscriber = Subscriber(server)
    expected = [payload for payload in payloads if payload not in lost]
    wait_until(lambda: len(subscriber.got) >= len(expected))
    assert subscriber.got == expected
    subscriber.close()
