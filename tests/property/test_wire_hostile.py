"""Peers that say anything at all: the store's side ends their connections with a WireError, and what it stores can be
applied again."""

import random
from pathlib import Path

import pytest

from store.errors import WireError
from store.records._records import census
from store.records.records import RecordType
from store.state.changes import SessionClosed, SessionOpened, WillFired, WillState
from store.state.group_settings import GroupSettings
from store.wire import messages as wire
from store.wire.frames import encode
from store.wire.group_messages import (
    Ack,
    ChangeInvisible,
    GroupClose,
    GroupDrop,
    GroupList,
    GroupOpen,
    GroupReset,
    Pop,
    Receipt,
    Reject,
)
from store.wire.messages import Append, Role, WireMessage
from tests.support.store_protocol_bench import Talk, WireBench, changes_of
from tests.support.stores import batch_of

FRAMES = 40_000
PER_START = 10_000
MOST_TALKS = 8
CHANGES = (
    SessionOpened("h", False, 5, WillState("h/w", b"", 0, False, b"", 0)),
    SessionOpened("h", True, 0),
    SessionClosed("h", 5, True),
    SessionClosed("h", 0, False),
    WillFired("h"),
)


def a_frame(rng: random.Random, number: int) -> bytes:
    """A request that a peer may make, with odd values."""
    large = rng.choice((0, 1, 1 << 40, 2**63 - 1))
    topic_filter = rng.choice(("h/#", "h/+", "#", "h/1", "$SYS/#"))
    message = bytes(batch_of(rng.randbytes(9), topic=b"h/%d" % (number % 5), flags=rng.randrange(64)))
    requests: list[tuple[WireMessage, bytes]] = [
        (Append(rng.choice((number, number, 1, large or 1))), message),
        (Append(number), changes_of(*rng.sample(CHANGES, rng.randrange(1, 4)))),
        (wire.Follow(topic_filter, bool(number & 1), large - (large == 0), bool(number & 2)), b""),
        (wire.Read([(rng.randrange(4), large), (1, 0)], large or 1, large or 1), b""),
        (wire.ReadAt([rng.randrange(1 << 20) * 8, large, 64]), b""),
        (wire.Retained(topic_filter, rng.choice(("", "h", "\uffff")), large or 1), b""),
        (wire.Locate(topic_filter, rng.choice(("earliest", "-1h", "@9", "9" * 19, "x", "1e9"))), b""),
        (wire.Claim("h", bool(number & 1)), b""),
        (wire.Check([rng.randrange(4), 1, 1, 2**32 - 1]), b""),
        *((each, b"") for each in group_requests(rng, topic_filter, large)),
        (wire.Publish(rng.choice((number, number, 1, large or 1)), wire.Wait(number % 2)), message),
        (wire.Scan(topic_filter, rng.choice((0, 64, number * 8, large)), large, large or 1), b""),
        (wire.Seek(topic_filter, rng.choice(("now", "-1h", "@9", f"={number * 8}", "x")), rng.choice((0, large))), b""),
        (wire.Find("k", rng.choice(("", topic_filter)), rng.choice(("-1h", "x")), "now", large, large or 1), b""),
        (wire.Get(rng.choice((large, number * 8, 104))), b""),
    ]
    told = (
        wire.Ping(),
        wire.Pong(),
        wire.Unfollow([1, 1, 9]),
        wire.Floors([(1, large)]),
        wire.Release("h"),
        GroupClose(rng.randrange(9)),
    )
    asked, records = rng.choice(requests)
    return encode(asked, rng.choice((number, number, 1)), records) + (
        encode(rng.choice(told)) if rng.random() < 0.3 else b""
    )


def group_requests(rng: random.Random, topic_filter: str, large: int) -> list[WireMessage]:
    ref = rng.randrange(9)
    settings = rng.choice((None, GroupSettings(), GroupSettings(3, 1, 1, 1, 1, 1)))
    start = rng.choice(("earliest", "latest", "9" * 19, "x"))
    receipts = [Receipt(large or 1, large, rng.choice((1, 65_536))), Receipt(rng.randrange(1, 1 << 52), 0, 9)]
    return [
        GroupOpen(rng.choice("gh"), topic_filter, rng.choice(("", "c")), settings, start),
        Pop(ref, large or 1, large or 1, 0, rng.choice((0, 1, 60_000))),
        Ack(ref, receipts[: rng.randrange(3)]),
        ChangeInvisible(ref, receipts, rng.choice((0, 9))),
        Reject(ref, receipts, rng.choice((None, 0)), rng.choice(("", "no"))),
        GroupList(rng.choice(("", "g")), large),
        GroupReset("g", topic_filter, start),
        GroupDrop("h", topic_filter),
    ]


def mutated(rng: random.Random, data: bytes) -> bytes:
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(result))
        result[at] = rng.choice((0, 1, 0x7F, 0x80, 0x90, 0xC1, 0xFF, result[at] ^ 1 << rng.randrange(8)))
    return bytes(result)


class Crowd:
    """Some peers that come, say things, and go, in one way or another."""

    def __init__(self, bench: WireBench, rng: random.Random) -> None:
        self._bench = bench
        self._rng = rng
        self.talks: list[Talk] = []
        self.taken = self.ended = 0

    def step(self, number: int) -> None:
        rng = self._rng
        if not self.talks or (len(self.talks) < MOST_TALKS and rng.random() < 0.1):
            name = rng.randrange(12)
            self.talks.append(self._bench.connect(f"p{name}", Role.CLIENT if name % 3 == 0 else Role.GATEWAY))
        talk = rng.choice(self.talks)
        frame = a_frame(rng, number)
        try:
            talk.send(mutated(rng, frame) if rng.random() < 0.05 else frame)
            if rng.random() < 0.5:
                talk.flush()
                talk.frames.clear()
            self.taken += 1
        except WireError:
            self.ended += 1
            talk.cut()
        if rng.random() < 0.01:
            talk.cut()
        self.talks = [each for each in self.talks if not each.conversation.is_closing]
        if rng.random() < 0.02:
            self._bench.now_s += rng.uniform(0, 0.5)
            self._bench.tick()


@pytest.mark.parametrize("seed", [1, 2])
def test_any_input(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bench = WireBench(tmp_path)
    taken = ended = 0
    for _ in range(FRAMES // PER_START):
        crowd = Crowd(bench, rng)
        for number in range(2, PER_START):
            crowd.step(number)
        for talk in crowd.talks:
            talk.cut()
        taken, ended = taken + crowd.taken, ended + crowd.ended
        bench.restart()
    assert taken > FRAMES // 2
    assert ended > FRAMES // 100
    assert RecordType.SESSION_OPENED in _types(bench)
    bench.store.close()


def _types(bench: WireBench) -> set[int]:
    log = bench.store.log
    return {kind for _, data in log.ranges(log.first, 1 << 20) for kind in census(data)}
