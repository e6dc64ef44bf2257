"""A sector that cannot be read, or a file that is cut off, while the server has it mapped: the rest is served.

A page fault is no system call, so a file system has to refuse it (tests/support/unreadable_disk.py).
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sync import Client
from store.files.segment import segment_paths
from tests.conftest import ServerFactory
from tests.crash.test_damaged_log import TOPIC, Subscriber, messages_of, publish
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until
from tests.support.unreadable_disk import UnreadableDisk

BLOCK_BYTES = 4096
QUIET: dict[str, object] = {"store.verify_at_start_bytes": 262_144, "store.scrub_bytes_per_s": 0}


@pytest.fixture
def disks() -> Iterator[list[UnreadableDisk]]:
    disks: list[UnreadableDisk] = []
    yield disks
    for disk in disks:
        disk.close()


def served(server: PenstockServer, expected: list[bytes]) -> None:
    """All of it, to a session that was away, and in two replays."""
    subscriber = Subscriber(server)
    wait_until(lambda: len(subscriber.got) >= len(expected))
    assert subscriber.got == expected
    subscriber.close()
    assert server.process.poll() is None


def read(client: Client, topic_filter: str) -> list[bytes]:
    messages = client.read(topic_filter, start="earliest")
    return [message.payload for message in messages if message.topic == TOPIC]


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs FUSE")
def test_a_sector_that_cannot_be_read_costs_what_was_in_it(
    disks: list[UnreadableDisk], penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path
) -> None:
    server = penstock_server(flush="sync", settings=small | QUIET)
    Subscriber(server).close()
    payloads = publish(server)
    server.terminate()
    disks.append(UnreadableDisk(server.data / "log", tmp_path))
    server.restart()
    segment = next(path for path in segment_paths(server.data / "log") if len(messages_of(path)) > 50)
    found = messages_of(segment)
    start = found[20][0] // BLOCK_BYTES * BLOCK_BYTES
    lost = {payload for at, payload in found if at < start + BLOCK_BYTES and start < at + len(payload) + 100}
    disks[0].cannot_read(segment, start, start + BLOCK_BYTES)
    expected = [payload for payload in payloads if payload not in lost]
    served(server, expected)
    for _ in range(2):
        with Client(f"unix://{server.data / 'console.sock'}") as client:
            for topic_filter in ("plant/7/temp", "#"):
                assert read(client, topic_filter) == expected
    assert "could not be read" in server.log_text()
    assert server.process.poll() is None


def test_a_segment_that_is_cut_off_meanwhile(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    server = penstock_server(flush="sync", settings=small | QUIET)
    Subscriber(server).close()
    payloads = publish(server)
    server.restart()
    segment = next(path for path in segment_paths(server.data / "log") if len(messages_of(path)) > 50)
    found = messages_of(segment)
    end = found[20][0] // BLOCK_BYTES * BLOCK_BYTES
    lost = {payload for at, payload in found if at + len(payload) > end}
    shutil.copy(segment, segment.with_name("kept"))
    os.truncate(segment, end)
    expected = [payload for payload in payloads if payload not in lost]
    served(server, expected)
    with Client(f"unix://{server.data / 'console.sock'}") as client:
        assert read(client, "#") == expected
