"""Whether the index keeps up with the log: messages with a key and a tag that match three held filters, flat out.

The store does what its process does, in turns of 1,000 messages. What is measured apart, in CPU time of its one loop,
which other work on the machine disturbs least: writing the log to the page cache (append), giving entries and keys to
queues in memory (apply), and handing them to RocksDB (index). Readers see what is applied; what RocksDB does not have
is replayed after a crash. Each turn applies what it appended, so nothing can run ahead of it.
"""

from __future__ import annotations

import time
from pathlib import Path

from lightqueue.message_store import MessageStore
from store._records import RecordBatch
from store.changes import SessionOpened, Subscribed, SubscriptionState, encode_change
from store.records import Attribute, RecordType, encode_attribute
from store.settings import StoreSettings

MESSAGES = 1_000_000
TURN_MESSAGES = 1_000
TOPICS = 1_000
FILTERS = ("line/+/temp", "line/+/+", "+/+/temp")
PAYLOAD = bytes(100)


def keeping_up(folder: Path) -> dict[str, object]:
    """Messages/s of each part, and how far the index is behind at most; with keys and tags, and without."""
    return {name: _keeping_up(folder, name, has_keys) for name, has_keys in (("keys, tags", True), ("neither", False))}


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
