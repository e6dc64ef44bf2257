"""SIGKILL of a `penstock store` while it applies a Publish, or a gateway's Append, to thousands of queues: it is in the
log, and in all queues after a restart; sent again it is stored once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from store.errors import WireError
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.state.changes import SessionOpened, Subscribed, SubscriptionState, encode_change
from store.wire.client_messages import Publish, Published, Scan, Scanned, Wait
from store.wire.messages import Append, Appended, Claim, Claimed, Follow, Following, Role, WireMessage
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import WirePeer
from tests.support.stores import wait_until

LEVELS = [b"%d" % i for i in range(10)]
TOPIC = b"/".join(LEVELS)
MESSAGES = 2_000
MARK = b"last of them"
ATTEMPTS = 10
SMALL_LOG = {"store.segment_bytes": 8 << 20}  # it is looked through many times


def filters() -> list[str]:
    found = []
    for bits in range(1 << len(LEVELS)):
        parts = [b"+" if bits >> i & 1 else level for i, level in enumerate(LEVELS)]
        found.append(b"/".join(parts).decode())
    return found


def add_messages(batch: RecordBatch) -> None:
    for number in range(MESSAGES):
        batch.append(RecordType.MESSAGE, MARK if number == MESSAGES - 1 else b"%d" % number, topic=TOPIC)


def messages() -> bytes:
    batch = RecordBatch()
    add_messages(batch)
    return bytes(batch)


def with_session() -> bytes:
    """Messages between the beginning of a session and its subscription."""
    batch = RecordBatch()
    batch.append(*encode_change(SessionOpened("c1", False, 3600)))
    add_messages(batch)
    batch.append(*encode_change(Subscribed("c1", [SubscriptionState("last/of/all", 1)])))
    return bytes(batch)


def is_logged(data: Path) -> bool:
    return any(MARK in path.read_bytes() for path in (data / "log").iterdir() if path.is_file())


def killed_between_steps(store: StoreProcess, role: Role, request: WireMessage, records: bytes, pings: int) -> bool:
    """Whether pings were answered once the log had it, and it was not: a Ping is dealt with between two steps alone."""
    watcher = store.connect("watcher", Role.CLIENT)
    for number in [watcher.ask(Follow(each, False, -1, False)) for each in filters()]:
        assert isinstance(watcher.answer(number), Following)
    peer = store.connect("peer", role)
    number = peer.ask(request, records)
    wait_until(lambda: is_logged(store.data))
    for _ in range(pings):
        watcher.ping()
    store.kill()
    return not was_answered(peer, number)


def was_answered(peer: WirePeer, number: int) -> bool:
    """Reads to the end of a connection."""
    with suppress(WireError):
        peer.answer(number)
        return True
    return False


def in_the_middle(folder: Path, role: Role, request: WireMessage, records: bytes, pings: int) -> StoreProcess:
    """A store that was killed between two steps; a busy machine may take several attempts."""
    for attempt in range(ATTEMPTS):
        own = folder / str(attempt)
        own.mkdir()
        store = StoreProcess(own, settings=SMALL_LOG)
        try:
            if killed_between_steps(store, role, request, records, pings):
                return store
        except BaseException:
            store.close()
            raise
        store.close()
    raise AssertionError("it was applied before the kill, each time")


def published_again(store: StoreProcess) -> None:
    peer = store.connect("peer", Role.CLIENT)
    answer = peer.call(Publish(1, Wait.STORED), messages())
    assert isinstance(answer, Published)
    assert answer.queue_offsets == [0]


def appended_again(store: StoreProcess) -> None:
    peer = store.connect("peer")
    assert peer.call(Append(1), with_session()) == Appended(0, 0)
    claimed = peer.call(Claim("c1", False))
    assert isinstance(claimed, Claimed)
    assert b"last/of/all" in claimed.session


@pytest.mark.parametrize("pings", [1, 20])
@pytest.mark.parametrize(
    ("role", "request_", "records", "again"),
    [
        (Role.CLIENT, Publish(1, Wait.STORED), messages(), published_again),
        (Role.GATEWAY, Append(1), with_session(), appended_again),
    ],
    ids=["publish", "append"],
)
def test_publish_killed_while_applied_is_whole_after_a_restart(
    tmp_path: Path, role: Role, request_: WireMessage, records: bytes, again: Callable[[StoreProcess], None], pings: int
) -> None:
    store = in_the_middle(tmp_path, role, request_, records, pings)
    try:
        store.start()
        again(store)
        client = store.connect("client", Role.CLIENT)
        behind = client.call(Publish(1, Wait.STORED), messages())
        assert isinstance(behind, Published)
        assert behind.queue_offsets == [MESSAGES]
        scanned = client.call(Scan(TOPIC.decode(), 0, behind.log_offset, 1 << 20))
        assert isinstance(scanned, Scanned)
        assert scanned.queue_offset == 0
        assert "Traceback" not in store.log_text()
    finally:
        store.close()
