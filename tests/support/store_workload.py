"""Random use of a MessageStore from a seed, and what its index says in a form that two stores can be compared by."""

import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from lightqueue.message_store import MessageStore
from lightqueue.queues.layout import NEXT_ID_KEY
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute
from store.state.changes import (
    Change,
    Progress,
    QueueDropped,
    Sent,
    SessionClosed,
    SessionEnded,
    SessionOpened,
    Subscribed,
    SubscriptionState,
    Unsubscribed,
)
from store.state.sessions import SessionState
from tests.support.index_entries import stored_ends, stored_entries
from tests.support.stores import change, indexed_keys, publish_delayed, write_step

FILTERS = ("d/+/t", "+/1/#", "#", "d/#", "d/1/t", "x/+", "$s/#")


class Workload:
    """Does one random thing after another."""

    def __init__(self, seed: int) -> None:
        self.randomly = random.Random(seed)
        self.topics = [f"d/{i}/t" for i in range(20)] + [f"l{i}" for i in range(20)] + ["x/y", "x/y/z", "$s/a", "/"]
        self.clients = [f"client-{i}" for i in range(8)]

    def run(self, store: MessageStore, steps: int) -> None:
        things: list[Callable[[MessageStore], Any]] = [self.publish] * 8
        things += [self.publish_mixed, self.open_or_close, self.subscribe, self.progress, self.drop, self.write_index]
        things += [self.write_step] * 2 + [self.come_and_go, self.publish_delayed, self.dispatch, self.cancel]
        for _ in range(steps):
            self.randomly.choice(things)(store)

    def publish(self, store: MessageStore) -> None:
        batch = RecordBatch()
        for _ in range(self.randomly.choice((1, 2, 30))):
            self._message(batch)
        store.append(batch)

    def publish_mixed(self, store: MessageStore) -> None:
        """Messages and a state change in one batch, the last two of them both or neither."""
        batch = RecordBatch()
        self._message(batch)
        batch.begin_atomic()
        self._message(batch)
        self._message(batch)
        batch.end_atomic()
        store.append(batch)

    def _message(self, batch: RecordBatch) -> None:
        randomly = self.randomly
        flags, attributes = randomly.choice((0, 1, 2)), b""
        if flags == 2:
            attributes = encode_attribute(Attribute.PACKET_ID, randomly.randrange(1, 9).to_bytes(2, "little"))
        if randomly.random() < 0.3:
            attributes += encode_attribute(Attribute.KEY, b"key-%d" % randomly.randrange(5))
        payload = randomly.randbytes(randomly.choice((0, 10, 200, 2000)))
        if randomly.random() < 0.2:
            flags |= RecordFlag.RETAIN
        batch.append(
            RecordType.MESSAGE,
            payload,
            topic=randomly.choice(self.topics).encode(),
            client_id=randomly.choice(self.clients).encode(),
            attributes=attributes,
            flags=flags,
        )

    def open_or_close(self, store: MessageStore) -> None:
        randomly = self.randomly
        client = randomly.choice(self.clients)
        expiry = randomly.choice((0, 60, 60))
        changes: list[Change] = [
            SessionOpened(client, randomly.random() < 0.3, expiry),
            SessionOpened(client, False, expiry),
            SessionClosed(client, expiry, False),
            SessionEnded(client),
        ]
        change(store, randomly.choice(changes))

    def subscribe(self, store: MessageStore) -> None:
        randomly = self.randomly
        names = randomly.sample(FILTERS, 2)
        subscriptions = [SubscriptionState(name, randomly.choice((0, 1, 2))) for name in names]
        client = randomly.choice(self.clients)
        changes: list[Change] = [Subscribed(client, subscriptions)] * 3 + [Unsubscribed(client, names)]
        change(store, randomly.choice(changes))

    def progress(self, store: MessageStore) -> None:
        randomly = self.randomly
        log_offset = randomly.randrange(store.end)
        owed = randomly.random() < 0.3
        sent = [Sent(randomly.randrange(1, 5), log_offset, 2, owed, owed=owed)]
        due = [Sent(0, log_offset - randomly.choice((0, 8)), 1, True, owed=True)]
        progress = Progress(randomly.choice(self.clients), log_offset, sent, [1], [randomly.randrange(1, 5)], [2], due)
        change(store, progress)

    def drop(self, store: MessageStore) -> None:
        if self.randomly.random() < 0.2:
            change(store, QueueDropped(store.queues.held.unheld()))

    def come_and_go(self, store: MessageStore) -> None:
        """A filter is held, and nobody holds it any more; its queue may go, and may be held again."""
        client, name = "passing", self.randomly.choice(FILTERS)
        again = [SessionOpened(client, True, 60), Subscribed(client, [SubscriptionState(name, 1)])]
        for _ in range(self.randomly.choice((1, 2))):
            change(store, *again)
            self.publish(store)
            change(store, SessionEnded(client))
            self.drop(store)

    def publish_delayed(self, store: MessageStore) -> None:
        """On a clock of its own, which begins at 0 in each store: what one left behind is due in the next."""
        flags = self.randomly.choice((0, 1, RecordFlag.RETAIN))
        due_ms = self.randomly.randrange(1_000)
        publish_delayed(store, self.randomly.choice(self.topics), b"later", b"too", due_ms=due_ms, flags=flags)

    def dispatch(self, store: MessageStore) -> None:
        store.dispatching.step(self.randomly.randrange(1_000), time.monotonic())

    def cancel(self, store: MessageStore) -> None:
        for pending in store.delayed.page(self.randomly.randrange(1_000), 0, 1):
            assert store.dispatching.cancel(pending.due_ms, pending.first_offset)

    def write_index(self, store: MessageStore) -> None:
        store.write_index()
        if self.randomly.random() < 0.3:
            store.index.flush()

    def write_step(self, store: MessageStore) -> None:
        """As a tick does; what is flushed is what a kill leaves of the index."""
        store.log.commit()
        write_step(store, self.randomly.choice((store.end, store._state.applied)))
        if self.randomly.random() < 0.5:
            store.index.flush()


def state_of(store: MessageStore, first: int | None = None) -> dict[str, Any]:
    """All that the index holds, whatever the packing and the ids; entries are log_offsets. Writes the index first.

    `first`: only entries from there on count, if not from the first record that is kept.
    """
    store.write_index()
    index = store.index
    first = store.log.first if first is None else first
    sessions = [msgspec.msgpack.decode(value, type=SessionState) for _, value in index.scan(b"s", b"t")]
    queues = {}
    ids = set()
    stored, ends = stored_entries(index), stored_ends(index)
    for key, value in index.scan(b"q", b"r"):
        queue_id = int.from_bytes(value[:8], "big")
        entries = stored.get(queue_id, [])
        next_offset = entries[-1][0] + 1 if entries else max(int.from_bytes(value[8:16], "big"), ends.get(queue_id, 0))
        queues[key] = (next_offset, [entry for entry in entries if entry[1] >= first])
        ids.add(queue_id)
    assert len(ids) == len(queues)
    assert max(ids, default=0) < int.from_bytes(index.get(NEXT_ID_KEY) or b"", "big")
    assert stored.keys() <= ids
    return {
        "queues": queues,
        "sessions": {session.client_id: session for session in sessions},
        "keys": [item for item in indexed_keys(store) if item[0] >= first],
        "retained": dict(store.retained.below(b"")),
        "retained_count": len(store.retained),
        "delayed": list(index.scan(b"d", b"e")),
        "delayed_count": len(store.delayed),
        "applied": (index.applied_offset, index.state_offset),
    }
