"""A gateway's entry in a real Redis, and the copy of it that a store keeps; without processes of ours."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from lightqueue.queues._queues import TOPIC, Queue
from loadtest.chaos.ledger import until
from loadtest.chaos.redis_server import RedisServer
from loadtest.chaos.wire import Wire
from notify.events import lookup
from notify.events.lookup import Watched, queue_named
from notify.events.redis_lookup import CHANNEL, PORTION_NAMES, RedisEntry, RedisTable, RedisUnusable

LEASE_MS = 900
MANY = 5 * PORTION_NAMES + 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.resume()
    server.kill()


class Gateway:
    """What a gateway has to do with it."""

    def __init__(self, server: RedisServer | Wire, name: str = "gw") -> None:
        self.queues: dict[Queue, None] = {}
        self.watched = Watched(self.queues)
        self.entry = RedisEntry(f"redis://127.0.0.1:{server.port}/0", name, self.watched, LEASE_MS)

    def follow(self, topic: str) -> Queue:
        queue = queue_named(topic, TOPIC, 0)
        self.queues[queue] = None
        self.watched.begin(queue)
        return queue

    def unfollow(self, queue: Queue) -> None:
        del self.queues[queue]
        self.watched.end(queue)


def is_watched(store: RedisTable, topic: str) -> bool:
    return list(store.table.watchers(b"0" + topic.encode())) == ["gw"]


@pytest.mark.asyncio
async def test_the_copy_is_what_the_gateway_watches(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_CHANGES", 2 * PORTION_NAMES)
    gateway, store = Gateway(server), RedisTable(server.url, lambda name: name == "gw")
    early = [gateway.follow(f"early/{i}") for i in range(MANY)]
    gateway.entry.start()
    store.start()
    await until(lambda: store.table.knows("gw"), "the entry")
    assert all(is_watched(store, f"early/{i}") for i in range(MANY))
    gateway.unfollow(early[0])
    gateway.follow("late")
    await until(lambda: is_watched(store, "late") and not is_watched(store, "early/0"), "the changes")
    for queue in early[1:]:  # more at a time than are written one by one
        gateway.unfollow(queue)
    assert gateway.watched.is_all_new
    await until(lambda: store.table.knows("gw") and not is_watched(store, "early/1"), "all of it anew")
    assert is_watched(store, "late")
    await gateway.entry.close()
    await until(lambda: not store.table.knows("gw"), "its end")
    await store.close()


@pytest.mark.asyncio
async def test_redis_copy_leaves_out_foreign_and_partial_entries(server: RedisServer) -> None:
    ours, other = Gateway(server), Gateway(server, "other")
    store = RedisTable(server.url, lambda name: name in ("gw", "partial"))
    for each in (store, ours.entry, other.entry):
        each.start()
    await until(lambda: store.table.knows("gw"), "the entry")
    assert not store.table.knows("other")
    with redis.Redis(port=server.port) as client:
        client.sadd(f"{CHANNEL}:partial", b"0a")
        client.publish(CHANNEL, b"\x94\xa7partial\xcd\x0b\xb8\x90\x90")
        ours.follow("said/afterwards")
        await until(lambda: is_watched(store, "said/afterwards"), "the next change")
        assert not store.table.knows("partial")
    for each in (store, ours.entry, other.entry):
        await each.close()


@pytest.mark.asyncio
async def test_a_gateway_that_is_cut_off_from_redis_is_unknown_until_it_is_back(server: RedisServer) -> None:
    wire = Wire(server.port)
    gateway, store = Gateway(wire), RedisTable(server.url, bool)
    for each in (store, gateway.entry):
        each.start()
    try:
        await until(lambda: store.table.knows("gw"), "the entry")
        wire.cut()
        await until(lambda: not store.table.knows("gw"), "the lease to end")
        assert store.is_connected
        gateway.follow("meanwhile")
        wire.mend()
        await until(lambda: store.table.knows("gw"), "the entry anew")
        assert is_watched(store, "meanwhile")
    finally:
        await gateway.entry.close()
        await store.close()
        wire.close()


@pytest.mark.asyncio
async def test_a_redis_that_answers_errors_is_as_good_as_none(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis(port=server.port) as client:
        client.config_set("maxmemory", 1)
        gateway = Gateway(server)
        gateway.entry.start()
        await until(lambda: "maxmemory" in caplog.text, "a warning")
        assert len(caplog.records) == 1
        client.config_set("maxmemory", 0)
    await until(lambda: gateway.entry.is_connected, "better times")
    await gateway.entry.close()


@pytest.mark.asyncio
async def test_a_wrong_url_or_a_missing_package_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, complaint in {
        "redis://h:x/0": "port",
        "redis://h:99999/0": "port",
        "redis://h/?db=x": "cannot be used",
    }.items():
        with pytest.raises(RedisUnusable, match=complaint):
            RedisTable(url, bool)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(RedisUnusable, match="pip install 'penstock\\[redis\\]', or unset it"):
        RedisTable("redis://h/0", bool)


@pytest.mark.asyncio
async def test_redis_entry_ends_at_any_time(server: RedisServer) -> None:
    """A cancellation in the very turn of the loop in which a write is done gets lost in Python 3.11."""
    for turns in range(60):
        gateway = Gateway(server)
        gateway.entry.start()
        await until(lambda entry=gateway.entry: entry.is_connected, "the entry")  # type: ignore[misc]
        gateway.follow("late")
        for _ in range(turns):
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(gateway.entry.close())
        assert await asyncio.wait([closing], timeout=5) == ({closing}, set())
