"""Whether the index keeps up with the log: messages with a key and a tag that match three held filters, flat out.

The store does what its process does, in turns of 1,000 messages. What is measured apart, in CPU time of its one loop,
which other work on the machine disturbs least: writing the log to the page cache (append), giving entries and keys to
queues in memory (apply), and handing them to RocksDB (index). Readers see what is applied; what RocksDB does not have
is replayed after a crash. Each turn applies what it appended, so nothing can run ahead of it.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import psutil

from lightqueue.message_store import MessageStore
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordType, encode_attribute
from store.settings import StoreSettings
from store.state.changes import SessionOpened, Subscribed, SubscriptionState, encode_change
from store.wire.messages import Find, Found, Publish, Published, Role, Wait
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_consumer import GroupConsumer

MESSAGES = 1_000_000
TURN_MESSAGES = 1_000
TOPICS = 1_000
UNDER_WAY = 16  # Publishes of so many messages
FILTERS = ("line/+/temp", "line/+/+", "+/+/temp")
PAYLOAD = bytes(100)


def keeping_up(folder: Path) -> dict[str, object]:
    """Messages/s of each part, and how far the index is behind at most; with keys and tags, and without."""
    kinds = (("keys, tags", True), ("neither", False))
    found: dict[str, object] = {name: _keeping_up(folder, name, has_keys) for name, has_keys in kinds}
    return found | {f"{name}, by the wire": _by_the_wire(folder, name, has_keys) for name, has_keys in kinds}


def _keeping_up(folder: Path, name: str, has_keys: bool) -> dict[str, float]:
    place = folder / f"indexing-{time.monotonic_ns()}"
    place.mkdir()
    store = MessageStore(StoreSettings(data=place / "data", flush="async", retention_check_s=1_000_000))
    try:
        _hold(store)
        found = _run(store, _turns(has_keys))
    finally:
        store.close()
    print(
        f"index, 3 filters, {name:10}: append {found['append']:>9,.0f}/s  apply {found['apply']:>9,.0f}/s  "
        f"index {found['index']:>9,.0f}/s  all {found['all']:>9,.0f}/s  "
        f"at most {found['behind']:,.0f} messages behind, caught up after {found['catch_up_ms']:.0f} ms",
        flush=True,
    )
    return found


def _by_the_wire(folder: Path, name: str, has_keys: bool) -> float:
    """Messages for a second of a store process's CPU time, all threads; from one client, 16 Publishes under way."""
    place = folder / f"indexing-{time.monotonic_ns()}"
    place.mkdir()
    store = StoreProcess(place)
    try:
        holders = [GroupConsumer(store.url, f"c-{each}", "bench", each) for each in FILTERS]
        client = store.connect("client", Role.CLIENT)
        turns = _turns(has_keys)
        asked: deque[int] = deque()
        process = psutil.Process(store.process.pid)
        start_s, before_s = time.perf_counter(), sum(process.cpu_times()[:2])
        for turn in range(MESSAGES // TURN_MESSAGES):
            asked.append(client.ask(Publish(turn + 1, Wait.STORED), turns[turn % len(turns)]))
            while len(asked) > UNDER_WAY or (asked and turn == MESSAGES // TURN_MESSAGES - 1):
                assert isinstance(client.answer(asked.popleft()), Published)
        elapsed_s = time.perf_counter() - start_s
        rate = MESSAGES / (sum(process.cpu_times()[:2]) - before_s)
        if has_keys:
            answer = client.answer_frame(client.ask(Find("key-19999", "", "earliest", "now", 2**63 - 1, 1)))
            assert isinstance(answer.message, Found)
            assert answer.message.count == 1
        for each in holders:
            each.close()
    finally:
        store.close()
    print(
        f"index, 3 filters, {name:10}: by the wire {rate:,.0f} for each second of the store's CPU "
        f"({MESSAGES / elapsed_s:,.0f}/s elapsed)",
        flush=True,
    )
    return rate


def _hold(store: MessageStore) -> None:
    """Have a durable session hold the filters, so that they have queues."""
    batch = RecordBatch()
    subscriptions = [SubscriptionState(topic_filter, 1) for topic_filter in FILTERS]
    for change in (SessionOpened("m7", False, 3600), Subscribed("m7", subscriptions)):
        record_type, payload = encode_change(change)
        batch.append(record_type, payload)
    store.append(batch)


def _turns(has_keys: bool) -> list[bytes]:
    """What some turns bring, to be appended again and again."""
    turns = []
    for turn in range(20):
        batch = RecordBatch()
        for number in range(TURN_MESSAGES):
            device = (turn * TURN_MESSAGES + number * 7) % TOPICS
            key = encode_attribute(Attribute.KEY, b"key-%d" % (turn * TURN_MESSAGES + number))
            tag = encode_attribute(Attribute.TAG, b"C" if number % 2 else b"F")
            attributes = key + tag if has_keys else b""
            topic = b"line/%d/temp" % device
            batch.append(RecordType.MESSAGE, PAYLOAD, topic=topic, client_id=b"m7", attributes=attributes, flags=1)
        turns.append(bytes(batch))
    return turns


def _run(store: MessageStore, turns: list[bytes]) -> dict[str, float]:
    types = bytes((RecordType.MESSAGE,))
    spent = {"append": 0.0, "apply": 0.0, "index": 0.0}
    dispatcher, log, state = store.queues.dispatcher, store.log, store._state
    behind_bytes = 0
    for turn in range(MESSAGES // TURN_MESSAGES):
        batch = RecordBatch.adopt(turns[turn % len(turns)], types)
        at_s = time.thread_time()
        start = log.append(batch)
        log.commit()
        appended_s = time.thread_time()
        dispatcher.apply_appended(log.memory, start, batch.size)
        state.position = log.end
        applied_s = time.thread_time()
        store.tick()
        spent["append"] += appended_s - at_s
        spent["apply"] += applied_s - appended_s
        spent["index"] += time.thread_time() - applied_s
        behind_bytes = max(behind_bytes, log.end - state.applied)
    at_s, since_s = time.thread_time(), time.perf_counter()
    store.write_index()
    spent["index"] += time.thread_time() - at_s
    rates = {name: MESSAGES / each_s for name, each_s in spent.items()}
    return rates | {
        "all": MESSAGES / sum(spent.values()),
        "behind": behind_bytes * MESSAGES / log.end,
        "catch_up_ms": 1000 * (time.perf_counter() - since_s),
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        keeping_up(Path(name))
