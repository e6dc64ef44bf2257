"""The worst that one peer of a store may send, frame by frame: cases of `python -m tests.bench.worst --wire`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from store.errors import WireError
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.state.changes import SessionClosed, SessionOpened, Subscribed, SubscriptionState, encode_change
from store.wire.base import ITEMS_PER_FRAME, MOST_ITEMS_OF_CLIENT
from store.wire.client_messages import Find, Publish, Scan, Seek, Wait
from store.wire.frames import encode
from store.wire.group_messages import (
    Ack,
    ChangeInvisible,
    GroupClose,
    GroupList,
    GroupOpen,
    GroupOpened,
    Pop,
    Receipt,
    Reject,
)
from store.wire.messages import (
    MOST_ITEMS,
    Append,
    Check,
    Claim,
    Enough,
    Floors,
    Follow,
    Following,
    Grew,
    Holds,
    ListDelayed,
    Ping,
    Read,
    ReadAt,
    Retained,
    Role,
    Unfollow,
    WireMessage,
)
from store.wire.session_messages import Judged
from tests.bench.turn_clock import TurnClocks, clocked
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import WirePeer

FRAME_BYTES = 4 << 20  # the default of wire.max_frame_bytes
MANY = 10_000
MANY_QUEUES = 20_000
OVERLAPPING_LEVELS = 11  # each as it is or a +: 2,048 filters

Said = Callable[[WirePeer], None]


def records(count: int, topic: Callable[[int], bytes], payload: bytes = b"", flags: int = 0) -> bytes:
    batch = RecordBatch()
    for i in range(count):
        batch.append(RecordType.MESSAGE, payload, topic=topic(i), flags=flags)
    return bytes(batch)


def publishes(count: int, topic: Callable[[int], bytes], payload: bytes = b"", flags: int = 0) -> Said:
    return lambda peer: _call(peer, Publish(1, Wait.STORED), records(count, topic, payload, flags))


def many(*messages: WireMessage) -> Said:
    """In one piece: requests first."""

    def said(peer: WirePeer) -> None:
        numbers = range(1_000_000, 1_000_000 + len(messages))
        asked = not isinstance(messages[0], Ping)
        peer.socket.sendall(
            b"".join(encode(each, n if asked else 0) for n, each in zip(numbers, messages, strict=True))
        )
        if asked:
            peer.answer(numbers[-1])

    return said


def followed(peer: WirePeer, count: int) -> list[int]:
    """Refs of so many queues."""
    numbers = [peer.ask(Follow(f"q/{i}/+", False, -1, False)) for i in range(count)]
    found = [peer.answer(number) for number in numbers]
    return [queue.ref for each in found if isinstance(each, Following) for queue in each.queues]


def on_refs(make: Callable[[list[int]], WireMessage], is_asked: bool = False) -> Said:
    """A message about as many queues as a frame can name, which are followed before."""

    def said(peer: WirePeer) -> None:
        refs = followed(peer, 4_000)
        clocks(peer)
        message = make((refs * (MOST_ITEMS // len(refs) + 1))[:MOST_ITEMS])
        if is_asked:
            peer.call(message)
        else:
            peer.tell(message)

    return said


def _call(peer: WirePeer, message: WireMessage, data: bytes = b"") -> None:
    with suppress(WireError):
        peer.call(message, data)


def to_many_queues(peer: WirePeer, request: WireMessage) -> None:
    """2,000 messages to a topic that 2,048 overlapping filters match."""
    levels = [b"%d" % i for i in range(OVERLAPPING_LEVELS)]
    topic = b"/".join(levels)
    numbers = []
    for bits in range(1 << OVERLAPPING_LEVELS):
        parts = [b"+" if bits >> i & 1 else level for i, level in enumerate(levels)]
        numbers.append(peer.ask(Follow(b"/".join(parts).decode(), False, -1, False)))
    for number in numbers:
        assert isinstance(peer.answer(number), Following)
    clocks(peer)
    _call(peer, request, records(2_000, lambda _: topic))


def sessions(peer: WirePeer) -> None:
    """As many changes of state as an Append has room for, or so: sessions that open, with subscriptions, and close."""
    batch = RecordBatch()
    for number in range(MANY):
        client_id = f"c{number}"
        batch.append(*encode_change(SessionOpened(client_id, False, 3600)))
        batch.append(*encode_change(Subscribed(client_id, [SubscriptionState(f"s/{number}", 1)])))
        batch.append(*encode_change(SessionClosed(client_id, 3600, False)))
    _call(peer, Append(1), bytes(batch))


def subscribed(peer: WirePeer) -> None:
    """All subscriptions that a session may have, in one change."""
    batch = RecordBatch()
    batch.append(*encode_change(SessionOpened("many", False, 3600)))
    batch.append(*encode_change(Subscribed("many", [SubscriptionState(f"many/{n}/+", 1) for n in range(MANY)])))
    _call(peer, Append(1), bytes(batch))


def comes_back(peer: WirePeer) -> None:
    """Who makes another connection is told of all queues that it follows."""
    refs = set(followed(peer, MANY_QUEUES))
    peer.close()
    clocks(peer)
    with WirePeer(peer.url, peer.name) as again:
        told: set[int] = set()

        def has_heard() -> bool:
            grew = [each for each in again.events if isinstance(each, Grew)]
            again.events.clear()
            told.update(ref for each in grew for ref, _ in each.queues)
            return told >= refs

        again.wait(has_heard)


def void(_: object) -> None:
    """What it was is not asked for."""


def clocks(peer: WirePeer) -> None:
    """What was done so far does not count."""
    found: TurnClocks | None = getattr(peer, "clocks", None)
    if found is not None:
        found.settle(timeout_s=1.0)  # a peer that says nothing for 2 s is gone
        found.longest_ms()


def handed_again(peer: WirePeer) -> None:
    _call(peer, Publish(1, Wait.STORED), records(MANY, lambda _: b"again/1"))
    for name in ("first", "second"):
        opened = peer.call(GroupOpen(f"again {peer.name}", "again/1", name, None, "earliest"))
        assert isinstance(opened, GroupOpened)
        clocks(peer)
        _call(peer, Pop(opened.ref, MANY, FRAME_BYTES, 0, 0))
        peer.tell(GroupClose(opened.ref))


def in_group(then: Callable[[int], WireMessage], is_gateway: bool = False) -> Said:
    """A request of a consumer that has as many messages of a group of its own as it may."""

    def said(peer: WirePeer) -> None:
        topic = f"g/{peer.name}"
        _call(peer, Append(1) if is_gateway else Publish(1, Wait.STORED), records(MANY, lambda _: topic.encode()))
        opened = peer.call(GroupOpen("group", topic, "c", None, "earliest"))
        assert isinstance(opened, GroupOpened)
        _call(peer, Pop(opened.ref, MANY, FRAME_BYTES, 0, 0))
        clocks(peer)
        _call(peer, then(opened.ref))

    return said


GATEWAY, CLIENT = Role.GATEWAY, Role.CLIENT
FRAMES: dict[str, tuple[Role, Said]] = {
    "Ping: 10,000 in one piece": (GATEWAY, many(*[Ping()] * MANY)),
    "Append: one topic, 10,000 records": (
        GATEWAY,
        lambda peer: _call(peer, Append(1), records(MANY, lambda _: b"a/b")),
    ),
    "Append: 10,000 topics": (GATEWAY, lambda peer: _call(peer, Append(1), records(MANY, lambda i: b"a/%d" % i))),
    "Append: 2,000 messages to 2,048 queues": (GATEWAY, lambda peer: to_many_queues(peer, Append(1))),
    "Append: 10,000 sessions open and close": (GATEWAY, sessions),
    "Publish: one topic, 10,000 records": (CLIENT, publishes(MANY, lambda _: b"p/b")),
    "Publish: 10,000 topics": (CLIENT, publishes(MANY, lambda i: b"p/%d" % i)),
    "Publish: 2,000 topics of 200 levels": (CLIENT, publishes(2_000, lambda i: b"/".join([b"%d" % i] * 200))),
    "Publish: 10,000 retained": (CLIENT, publishes(MANY, lambda i: b"r/%d" % i, flags=4)),
    "Publish: one message of 4 MB": (CLIENT, publishes(1, lambda _: b"large", b"x" * (FRAME_BYTES - 4_096))),
    "Publish: 2,000 messages to 2,048 queues": (CLIENT, lambda peer: to_many_queues(peer, Publish(1, Wait.STORED))),
    "Follow: 4,000 filters in one piece": (GATEWAY, lambda peer: void(followed(peer, 4_000))),
    "Follow: 60 filters of 60 KB": (
        GATEWAY,
        many(*(Follow(f"{i}/" + "x" * 60_000, False, -1, False) for i in range(60))),
    ),
    "Hello: one comes back that follows 20,000 queues": (GATEWAY, comes_back),
    "Unfollow: 65,536 refs": (GATEWAY, on_refs(Unfollow)),
    "Floors: 65,536 refs": (GATEWAY, on_refs(lambda refs: Floors([(ref, 1) for ref in refs]))),
    "Enough: 65,536 refs": (GATEWAY, on_refs(Enough)),
    "Check: 65,536 refs": (GATEWAY, on_refs(Check, True)),
    "Floors: 10,000 refs, of a client": (
        CLIENT,
        on_refs(lambda refs: Floors([(ref, 1) for ref in refs[:MOST_ITEMS_OF_CLIENT]])),
    ),
    "Floors: 65,536 refs, of a client": (CLIENT, on_refs(lambda refs: Floors([(ref, 1) for ref in refs]))),
    "Floors: 4,096 refs, as a gateway cuts them": (
        GATEWAY,
        on_refs(lambda refs: Floors([(ref, 1) for ref in refs[:ITEMS_PER_FRAME]])),
    ),
    "Read: 10,000 ranges, of a client": (
        CLIENT,
        on_refs(lambda refs: Read([(ref, 0) for ref in refs[:MOST_ITEMS_OF_CLIENT]], 1_000, FRAME_BYTES), True),
    ),
    "Read: 4,096 ranges, as a gateway cuts them": (
        GATEWAY,
        on_refs(lambda refs: Read([(ref, 0) for ref in refs[:ITEMS_PER_FRAME]], 1_000, FRAME_BYTES), True),
    ),
    "Read: 65,536 ranges": (GATEWAY, on_refs(lambda refs: Read([(ref, 0) for ref in refs], 1_000, FRAME_BYTES), True)),
    "ReadAt: 65,536 log_offsets": (GATEWAY, lambda peer: _call(peer, ReadAt([8 * i for i in range(MOST_ITEMS)]))),
    "Retained: 1,000 of many": (CLIENT, lambda peer: _call(peer, Retained("r/#", "", 1_000_000))),
    "Retained: no match among many": (CLIENT, lambda peer: _call(peer, Retained("+/+/x", "", 1_000_000))),
    "Claim: 10,000 filters": (
        GATEWAY,
        lambda peer: _call(peer, Claim("c" * 60_000, False, "u", False, tuple(f"f/{i}" for i in range(MANY)))),
    ),
    "Claim: 2,000 in one piece": (GATEWAY, many(*(Claim(f"c{i}", False) for i in range(2_000)))),
    "Holds: 65,536 sessions": (GATEWAY, lambda peer: peer.tell(Holds([f"h{i}" for i in range(MOST_ITEMS)]))),
    "Judged: 65,536 answers": (GATEWAY, lambda peer: peer.tell(Judged(1, [True] * MOST_ITEMS))),
    "Scan: nothing of a long log": (CLIENT, lambda peer: _call(peer, Scan("+/+/x", 0, 1 << 40, FRAME_BYTES))),
    "Scan: all of it": (CLIENT, lambda peer: _call(peer, Scan("#", 0, 1 << 40, FRAME_BYTES))),
    "Scan: a tag": (CLIENT, lambda peer: _call(peer, Scan("#", 0, 1 << 40, FRAME_BYTES, "t" * 60_000))),
    "Seek: by time": (CLIENT, lambda peer: _call(peer, Seek("#", "-1h", 0))),
    "Find: a key": (CLIENT, lambda peer: _call(peer, Find("k" * 60_000, "#", "earliest", "now", 1 << 40, 1_000_000))),
    "ListDelayed: all": (CLIENT, lambda peer: _call(peer, ListDelayed((0, 0), 1_000_000))),
    "GroupOpen: 500 in one piece": (
        CLIENT,
        many(*(GroupOpen(f"g{i}", "x/+", "c", None, "latest") for i in range(500))),
    ),
    "Ack: 10,000 receipts": (CLIENT, in_group(lambda ref: Ack(ref, [Receipt(1, i, 1) for i in range(MANY)]))),
    "Ack: 65,536 receipts of nothing": (
        CLIENT,
        in_group(lambda ref: Ack(ref, [Receipt(1 + i, i, MOST_ITEMS) for i in range(MOST_ITEMS)])),
    ),
    "Ack: 65,536 receipts, of a gateway": (
        GATEWAY,
        in_group(lambda ref: Ack(ref, [Receipt(1 + i, i, MOST_ITEMS) for i in range(MOST_ITEMS)]), is_gateway=True),
    ),
    "Ack: 65,536 receipts that count, of a gateway": (
        GATEWAY,
        in_group(lambda ref: Ack(ref, [Receipt(1 + i, i, 1) for i in range(MOST_ITEMS)]), is_gateway=True),
    ),
    "Reject: 10,000 messages": (CLIENT, in_group(lambda ref: Reject(ref, [Receipt(1, 0, MANY)], None, ""))),
    "Reject: 10,000 messages, dead": (CLIENT, in_group(lambda ref: Reject(ref, [Receipt(1, 0, MANY)], None, "no use"))),
    "Reject: 10,000 receipts": (
        CLIENT,
        in_group(lambda ref: Reject(ref, [Receipt(1, i, 1) for i in range(MANY)], None, "")),
    ),
    "ChangeInvisible: 10,000 messages": (
        CLIENT,
        in_group(lambda ref: ChangeInvisible(ref, [Receipt(1, 0, MANY)], 60_000)),
    ),
    "Pop: the rest of 10,000 messages": (CLIENT, in_group(lambda ref: Pop(ref, MANY, FRAME_BYTES, 0, 0))),
    "Pop: 8,192 messages that another consumer had": (CLIENT, handed_again),
    "Append: one session with 10,000 filters": (GATEWAY, subscribed),
    "GroupList: all": (CLIENT, lambda peer: _call(peer, GroupList("", 0))),
}
"""Who says it, and how; each with a name and a connection of its own, to one store for all of them."""


def results(names: list[str], folder: Path, rounds: int = 1) -> Iterator[tuple[str, float]]:
    """Of each case the longest turn of the store's loop (ms), the median of some rounds; one store for all of them."""
    with clocked(folder / "clocks") as found:
        store = StoreProcess(folder)
        try:
            for name in names:
                yield name, sorted(_longest(store, name, found, number) for number in range(rounds))[rounds // 2]
            assert "Traceback" not in store.log_text(), store.log_text()
        finally:
            store.close()


def _longest(store: StoreProcess, name: str, found: TurnClocks, number: int) -> float:
    role, said = FRAMES[name]
    found.settle()  # before there is a peer, whose lease would end meanwhile
    with store.connect(f"{role}-{name[:20]}-{number}", role) as peer:
        peer.clocks = found  # type: ignore[attr-defined]
        clocks(peer)
        with suppress(WireError):
            said(peer)
        found.settle()
        longest_ms = max(found.longest_ms().values())
    found.settle()
    return longest_ms
