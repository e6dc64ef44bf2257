"""SIGKILL of a `penstock store` while a Publish to thousands of queues is applied: it is in the log, and in all queues
after a restart; sent again it is stored once."""

from __future__ import annotations

from pathlib import Path

import pytest

from store._records import RecordBatch
from store.records import RecordType
from store.wire.client_messages import Publish, Published, Scan, Scanned, Wait
from store.wire.messages import Follow, Following, Ping, Role
from tests.store_process import StoreProcess
from tests.stores import wait_until

pytestmark = pytest.mark.crash

LEVELS = [b"%d" % i for i in range(10)]
TOPIC = b"/".join(LEVELS)
MESSAGES = 2_000
MARK = b"last of them"


def filters() -> list[str]:
    found = []
    for bits in range(1 << len(LEVELS)):
        parts = [b"+" if bits >> i & 1 else level for i, level in enumerate(LEVELS)]
        found.append(b"/".join(parts).decode())
    return found


def records() -> bytes:
    batch = RecordBatch()
    for number in range(MESSAGES):
        batch.append(RecordType.MESSAGE, MARK if number == MESSAGES - 1 else b"%d" % number, topic=TOPIC)
    return bytes(batch)


def is_logged(data: Path) -> bool:
    return any(MARK in path.read_bytes() for path in (data / "log").iterdir() if path.is_file())


@pytest.mark.parametrize("pings", [0, 1, 20])
def test_it_is_whole_after_a_restart(tmp_path: Path, pings: int) -> None:
    """`pings`: so many turns of the store's loop pass at least, between what it appends and its end."""
    store = StoreProcess(tmp_path)
    try:
        watcher = store.connect("watcher", Role.CLIENT)
        for number in [watcher.ask(Follow(each, False, -1, False)) for each in filters()]:
            assert isinstance(watcher.answer(number), Following)
        client = store.connect("client", Role.CLIENT)
        client.ask(Publish(1, Wait.STORED), records())
        wait_until(lambda: is_logged(store.data))
        for _ in range(pings):
            watcher.tell(Ping())
        store.kill()
        store.start()
        again = store.connect("client", Role.CLIENT)
        answer = again.call(Publish(1, Wait.STORED), records())
        assert isinstance(answer, Published)
        assert answer.queue_offsets == [0]
        behind = again.call(Publish(2, Wait.STORED), records())
        assert isinstance(behind, Published)
        assert behind.queue_offsets == [MESSAGES]
        scanned = again.call(Scan(TOPIC.decode(), 0, answer.log_offset + 1, 1 << 20))
        assert isinstance(scanned, Scanned)
        assert scanned.queue_offset == 0
        assert "Traceback" not in store.log_text()
    finally:
        store.close()
