"""A peer is told of many queues that grew in a round of several turns; it knows no less than with one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.events.lookup import Broadcast
from notify.local import members
from notify.server import events
from store.wire.frames import Frame
from store.wire.messages import (
    Check,
    Checked,
    Follow,
    Following,
    Grew,
    GrewNamed,
    Pushed,
    Ranges,
    Read,
    Safe,
    TakenOver,
    Unfollow,
)
from tests.support.store_protocol_bench import Talk, WireBench
from tests.support.stores import publish


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WireBench]:
    monkeypatch.setattr(events, "MOST_TOLD", 3)
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


def follow(peer: Talk, topic_filter: str) -> int:
    following = peer.call(Follow(topic_filter, True, -1, False))
    assert isinstance(following, Following)
    peer.frames.clear()
    return following.queues[0].ref


def say(bench: WireBench, *topics: str) -> None:
    for topic in topics:
        publish(bench.store, topic, b"x")
    bench.hub.tell_changes()


def turn(peer: Talk) -> list[Frame]:
    """What the store sends in one turn of its loop."""
    peer.woken = False
    for chunk in peer.conversation.outgoing():
        peer.take(chunk)
    found, peer.frames = peer.frames, []
    return found


def ends(frames: list[Frame]) -> list[tuple[int, int]]:
    """Where queues end, by these frames."""
    return [each for frame in frames if isinstance(frame.message, Grew) for each in frame.message.queues]


def test_many_queues_are_told_some_at_a_time_and_the_end_of_the_log_with_the_last(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    refs = [follow(gateway, f"t/{i}") for i in range(8)]
    known = bench.store.end
    say(bench, *(f"t/{i}" for i in range(8)))
    end = bench.store.end
    turns = []
    while gateway.woken:
        turns.append(turn(gateway))
        say(bench, "t/0")  # belongs to the next round
        if len(turns) == 3:
            break
    assert [len(ends(frames)) for frames in turns] == [3, 3, 2]
    assert [ref for frames in turns for ref, _ in ends(frames)] == refs
    told = [[frame.message.log_end for frame in frames if isinstance(frame.message, Grew)] for frames in turns]
    assert told == [[known], [known], [end]]
    safes = [[frame.message for frame in frames if isinstance(frame.message, Safe)] for frames in turns]
    assert not any(safes[:2]), "what is safe is known by then"
    assert all(each.log_offset <= end for each in safes[2])
    (last,) = [frame.message for frame in turn(gateway) if isinstance(frame.message, Grew | Pushed)]
    assert last.log_end == bench.store.end
    assert isinstance(last, Grew)
    assert last.queues == [(refs[0], 4)]
    gateway.flush()
    assert not ends(turn(gateway))


def test_request_during_a_round_of_events_is_answered_after_it(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    refs = [follow(gateway, f"t/{i}") for i in range(10)]
    say(bench, *(f"t/{i}" for i in range(10)))
    assert len(ends(turn(gateway))) == 3
    asked = gateway.ask(Read([(refs[0], 0)], 10, 1 << 20))
    gateway.flush()
    (answer,) = [at for at, frame in enumerate(gateway.frames) if frame.request_id == asked]
    assert isinstance(gateway.frames[answer].message, Ranges)
    assert [ref for ref, _ in ends(gateway.frames[:answer])] == refs[3:]


def test_read_before_a_round_of_events_is_answered_after_all_events(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    refs = [follow(gateway, f"t/{i}") for i in range(10)]
    say(bench, *(f"t/{i}" for i in range(10)))
    gateway.call(Read([(refs[0], 0)], 10, 1 << 20))
    assert [ref for ref, _ in ends(gateway.frames)] == refs


def test_answers_do_not_say_more_than_was_told(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    refs = [follow(gateway, f"t/{i}") for i in range(12)]
    known = bench.store.end
    frames: list[Frame] = []
    say(bench, *(f"t/{i}" for i in range(12)))
    for request in (Follow("t/new", True, -1, False), Check(refs[:1])):
        asked = gateway.ask(request)
        while not any(frame.request_id == asked for frame in frames):  # a busy machine may need more turns
            frames += turn(gateway)
        (answer,) = [frame.message for frame in frames if frame.request_id == asked]
        assert isinstance(answer, Following | Checked)
        assert answer.log_end == known
    gateway.flush()
    frames += gateway.frames
    assert max(frame.message.log_end for frame in frames if isinstance(frame.message, Grew)) == bench.store.end


def test_the_end_is_told_though_nobody_follows_the_last_queues_any_more(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    refs = [follow(gateway, f"t/{i}") for i in range(5)]
    say(bench, *(f"t/{i}" for i in range(5)))
    assert len(ends(turn(gateway))) == 3
    gateway.tell(Unfollow(refs[3:]))
    assert [frame.message for frame in turn(gateway) if isinstance(frame.message, Grew)] == [Grew([], bench.store.end)]


def test_returning_peer_is_told_of_all_followed_queues(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    refs = [follow(gateway, f"t/{i}") for i in range(10)]
    say(bench, *(f"t/{i}" for i in range(10)))
    assert len(ends(turn(gateway))) == 3
    gateway.cut()
    gateway = bench.connect("gw")
    gateway.ping()
    gateway.flush()
    assert ends(gateway.frames) == [(ref, 1) for ref in refs]


def test_a_name_that_is_anothers_by_now_is_not_told(bench: WireBench) -> None:
    bench.hub.lookup = Broadcast()
    slow, other = bench.connect("slow"), bench.connect("other")
    refs = [follow(other, f"+/{i}") for i in range(5)]
    say(bench, *(f"t/{i}" for i in range(5)))
    named = [frame.message for frame in turn(slow) if isinstance(frame.message, GrewNamed)]
    assert [len(each.queues) for each in named] == [3]
    last = {b"0t/3", b"0t/4", *(b"3+/%d" % i for i in range(5))} - {name for name, _ in named[0].queues}
    other.tell(Unfollow(refs))
    for i in range(5):
        follow(other, f"+/{i}")
    slow.flush()
    told = {name for frame in slow.frames if isinstance(frame.message, GrewNamed) for name, _ in frame.message.queues}
    assert not {name for name in told if name.startswith(b"3+/")}
    assert last


class Knowing:
    """What a peer knows, and what it may conclude from that."""

    def __init__(self, bench: WireBench, peer: Talk) -> None:
        self.bench, self.peer = bench, peer
        self.followed: dict[int, str] = {}
        self.names: dict[bytes, int] = {}
        self.known: dict[int, int] = {}
        self.safe = 0
        self.log: list[tuple[int, str]] = []  # log_offset and topic of all messages

    def follow(self, topic_filter: str) -> None:
        asked = self.peer.ask(Follow(topic_filter, True, -1, False))
        self.peer.flush()
        self.heard({asked: topic_filter})

    def say(self, topic: str) -> None:
        self.log.append((self.bench.store.end, topic))
        say(self.bench, topic)

    def _length(self, topic_filter: str, log_offset: int) -> int:
        return sum(at < log_offset and topic_filter in (topic, "t/#") for at, topic in self.log)

    def _knows_up_to(self, log_offset: int) -> None:
        for ref, topic_filter in self.followed.items():
            assert self.known[ref] >= self._length(topic_filter, log_offset), (ref, topic_filter)

    def _ends_at(self, ref: int, end: int) -> None:
        self.known[ref] = max(self.known.get(ref, 0), end)

    def _got(self, ref: int, first: int, count: int) -> None:
        """Of these messages it knows all queues that have them."""
        places = [at for at, topic in self.log if self.followed[ref] in (topic, "t/#")]
        for at in places[first : first + count]:
            self._knows_up_to(at + 1)

    def heard(self, follows: dict[int, str] | None = None) -> None:
        frames, self.peer.frames = self.peer.frames, []
        for frame in frames:
            match frame.message:
                case Following(queues, log_end):
                    ref = queues[0].ref
                    self.followed[ref] = (follows or {})[frame.request_id]
                    topic = self.followed[ref]
                    self.names[b"1t" if topic == "t/#" else b"0" + topic.encode()] = ref
                    self._ends_at(ref, queues[0].next_offset)
                    self._knows_up_to(log_end)
                case Grew(queues, log_end) | Checked(queues, log_end):
                    for ref, end in queues:
                        self._ends_at(ref, end)
                    self._knows_up_to(log_end)
                case GrewNamed(named, _, log_end):
                    for name, end in named:
                        if name in self.names:
                            self._ends_at(self.names[name], end)
                    self._knows_up_to(log_end)
                case Pushed(ranges, log_end, safe):
                    for ref, first, count in ranges:
                        self._ends_at(ref, first + count)
                    for each in ranges:
                        self._got(*each)
                    self._knows_up_to(log_end)
                    self._knows_up_to(safe)
                    self.safe = safe
                case Ranges(ranges):
                    for each in ranges:
                        self._got(*each)
                case Safe(log_offset):
                    self._knows_up_to(log_offset)
                    self.safe = log_offset
                case TakenOver():
                    raise AssertionError


@pytest.mark.parametrize("is_broadcast", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_log_end_told_to_a_peer_never_exceeds_its_known_queues(
    bench: WireBench, monkeypatch: pytest.MonkeyPatch, seed: int, is_broadcast: bool
) -> None:
    rng = random.Random(seed)
    if is_broadcast:
        monkeypatch.setattr(members, "MOST_NAMED", rng.choice((0, 4, 100)))
        bench.hub.lookup = Broadcast()
    peer = bench.connect("gw")
    bench.connect("other")
    knowing = Knowing(bench, peer)
    for topic_filter in ("t/#", *(f"t/{i}" for i in range(9))):
        knowing.follow(topic_filter)
    for _ in range(300):
        action = rng.random()
        if action < 0.5:
            for _ in range(rng.choice((1, 2, 9))):
                knowing.say(f"t/{rng.randrange(9)}")
        elif action < 0.8:
            knowing.peer.frames += turn(peer)
        elif action < 0.95 and knowing.known:
            refs = rng.sample(sorted(knowing.known), 2)
            peer.ask(Read([(ref, max(0, knowing.known[ref] - 1)) for ref in refs], 5, 1 << 20))
        else:
            peer.ask(Check(rng.sample(sorted(knowing.known), 2)))
        knowing.heard()
    safe = bench.store.safe
    peer.flush()
    knowing.heard()
    assert [knowing.known[ref] for ref in knowing.followed] == [
        knowing._length(name, bench.store.end) for name in knowing.followed.values()
    ]
    assert knowing.safe >= safe
