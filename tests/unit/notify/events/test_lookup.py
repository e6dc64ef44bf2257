"""Who is told that a queue grew: those that watch it, as far as a table knows; and what becomes of it in a gateway."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lightqueue.queues._queues import FILTER, LEVEL, LIVE, TOPIC, Queue
from notify.events import lookup as lookup_module
from notify.events.lookup import Broadcast, Table, WatchChange, Watched, name_of, queue_named
from notify.events.mirrors import EVERY_S, PAGE, Recheck
from notify.local import members
from store.wire.messages import Check, Checked, Follow, Following, Grew, GrewNamed, Role, Unfollow
from tests.support.store_protocol_bench import Talk, WireBench
from tests.support.stores import publish
from tests.unit.project.test_formats_doc import vector

LEASE_MS = 3_000


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


def follow(peer: Talk, topic_filter: str) -> int:
    answer = peer.call(Follow(topic_filter, False, -1, False))
    assert isinstance(answer, Following)
    return answer.queues[0].ref


def say(bench: WireBench, topic: str) -> None:
    publish(bench.store, topic, b"1")
    bench.hub.tell_changes()


def told(peer: Talk) -> list[bytes]:
    """Names of the queues that it was told of by name."""
    return [name for event in peer.events(GrewNamed) for name, _ in event.queues]


# --- names


@pytest.mark.parametrize(
    ("topic_filter", "kind", "name"),
    [("a/b", TOPIC, b"0a/b"), ("a/#", LEVEL, b"1a"), ("+/b", FILTER, b"2+/b"), ("a/+", LIVE, b"3a/+")],
)
def test_a_queue_has_the_same_name_on_both_sides(topic_filter: str, kind: int, name: bytes, bench: WireBench) -> None:
    assert name_of(queue_named(topic_filter, kind, 0)) == name
    if kind in (TOPIC, LEVEL):
        queue = bench.store.queues.stored(topic_filter)
        assert queue is not None
        assert name_of(queue) == name


# --- three gateways, one interested


def test_without_a_table_exactly_those_who_follow_are_told(bench: WireBench) -> None:
    gateways = [bench.connect(f"gw-{i}") for i in range(3)]
    ref = follow(gateways[0], "a/1")
    follow(gateways[1], "b/1")
    say(bench, "a/1")
    assert [event.queues for event in gateways[0].events(Grew)] == [[(ref, 1)]]
    for other in gateways[1:]:
        assert other.events(Grew) == []
    assert [told(each) for each in gateways] == [[], [], []]
    assert bench.hub.told() == {"watched": 3, "everything": 0}


def test_broadcast_tells_every_gateway_by_name_and_merges(bench: WireBench) -> None:
    bench.hub.lookup = Broadcast()
    gateways = [bench.connect(f"gw-{i}") for i in range(3)]
    client = bench.connect("client", Role.CLIENT)
    follow(gateways[0], "a/1")
    follow(gateways[1], "b/#")
    for topic in ("a/1", "a/1", "b/2", "nobody/watches"):
        say(bench, topic)
    for each in gateways:
        (event,) = each.events(GrewNamed)
        assert (dict(event.queues), event.others, event.log_end) == ({b"0a/1": 2, b"1b": 1}, False, bench.store.end)
        assert each.events(Grew) == []
    assert client.events(GrewNamed) == [], "one that is no gateway is told of what it follows"
    assert bench.hub.told() == {"watched": 0, "everything": 3}


def test_events_for_a_gateway_that_does_not_read_are_bounded(bench: WireBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_NAMED", 3)
    bench.hub.lookup = Broadcast()
    slow, other = bench.connect("slow"), bench.connect("other")
    for i in range(9):
        follow(other, f"a/{i}")
        say(bench, f"a/{i}")
        assert told(other) == [b"0a/%d" % i], "nobody waits for the slow one"
    (event,) = slow.events(GrewNamed)
    assert (event.queues, event.others) == ([], True)
    say(bench, "a/1")
    assert told(slow) == [b"0a/1"]


def frames_of_queues(peer: Talk) -> list[Grew | GrewNamed]:
    """Those that came since the last call, in order."""
    peer.flush()
    found = [frame.message for frame in peer.frames if isinstance(frame.message, Grew | GrewNamed)]
    peer.frames.clear()
    return found


def test_of_too_many_queues_those_that_it_follows_are_told_before_the_end(
    bench: WireBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes all that it follows for known up to the end of the log that it is told."""
    monkeypatch.setattr(members, "MOST_NAMED", 3)
    bench.peers.max_frame_bytes = 4_096
    bench.hub.lookup = Broadcast()
    slow, other = bench.connect("slow"), bench.connect("other")
    refs = [follow(slow, f"a/{i}") for i in range(600)]
    for i in range(600):
        follow(other, f"b/{i}")
        publish(bench.store, f"b/{i}", b"1")
        publish(bench.store, f"a/{i}", b"1")
        bench.hub.tell_changes()
    *earlier, last = frames_of_queues(slow)
    told_of = [each for event in (*earlier, last) if isinstance(event, Grew) for each in event.queues]
    assert sorted(told_of) == [(ref, 1) for ref in sorted(refs)]
    assert {event.log_end for event in earlier} == {slow.welcome.log_end}
    assert last.log_end == bench.store.end
    say(bench, "a/1")
    assert told(slow) == [b"0a/1"], "by name again"


def test_events_of_unfollowed_queues_are_not_kept(bench: WireBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_NAMED", 0)
    bench.hub.lookup = Broadcast()
    slow, other = bench.connect("slow"), bench.connect("other")
    follow(other, "a/1")
    ref, kept = follow(slow, "a/1"), follow(slow, "a/2")
    say(bench, "a/1")
    say(bench, "a/2")
    slow.tell(Unfollow([ref]))
    frames = frames_of_queues(slow)
    assert [event.queues for event in frames if isinstance(event, Grew)] == [[(kept, 1)]]


def test_of_queues_told_in_both_ways_the_last_frame_has_the_end(bench: WireBench) -> None:
    """A table may come to know a gateway while that is yet to be told something by name."""
    bench.hub.lookup = table = Table(lambda: bench.now_s)
    gateway, _ = bench.connect("gw"), bench.connect("other")
    ref = follow(gateway, "a/1")
    follow(gateway, "a/2")
    say(bench, "a/2")
    table.add("gw", {b"0a/1", b"0a/2"}, LEASE_MS)
    say(bench, "a/1")
    assert frames_of_queues(gateway) == [
        GrewNamed([(b"0a/2", 1)], False, gateway.welcome.log_end),
        Grew([(ref, 1)], bench.store.end),
    ]


def test_a_queue_that_nobody_watches_any_more_is_not_told(bench: WireBench) -> None:
    """What has its name later is another, and ends elsewhere."""
    bench.hub.lookup = Broadcast()
    one, other = bench.connect("one"), bench.connect("other")
    ref = follow(other, "+/1")
    say(bench, "a/1")
    other.tell(Unfollow([ref]))
    follow(one, "+/1")
    assert told(one) == []


def test_long_names_are_told_in_several_frames(bench: WireBench) -> None:
    bench.hub.lookup = Broadcast()
    one, other = bench.connect("one"), bench.connect("other")
    topics = [f"{i:02}" + "x" * 60_000 for i in range(80)]
    for topic in topics:
        follow(one, topic)
        publish(bench.store, topic, b"1")
    bench.hub.tell_changes()
    events = other.events(GrewNamed)
    assert len(events) > 1
    assert {name for event in events for name, _ in event.queues} == {b"0" + topic.encode() for topic in topics}
    assert {event.log_end for event in events[:-1]} == {other.welcome.log_end}, (
        "only the last one says where the log ends"
    )
    assert events[-1].log_end == bench.store.end


# --- with a table


def test_a_table_says_who_is_told_what(bench: WireBench) -> None:
    bench.hub.lookup = table = Table(lambda: bench.now_s)
    names = ("follows", "watches", "neither", "unknown")
    gateways = {name: bench.connect(name) for name in names}
    ref = follow(gateways["follows"], "a/1")
    table.add("follows", set(), LEASE_MS)
    table.add("watches", {b"0a/1"}, LEASE_MS)
    table.add("neither", {b"0b/1"}, LEASE_MS)
    table.add("nobody here", {b"0a/1"}, LEASE_MS)
    say(bench, "a/1")
    assert [event.queues for event in gateways["follows"].events(Grew)] == [[(ref, 1)]], "whatever the table says"
    assert {name: told(each) for name, each in gateways.items()} == {
        "follows": [],
        "watches": [b"0a/1"],
        "neither": [],
        "unknown": [b"0a/1"],
    }
    assert bench.hub.told() == {"watched": 3, "everything": 1}
    bench.now_s += LEASE_MS / 1000
    assert bench.hub.told() == {"watched": 0, "everything": 4}, "the leases ran out"


def test_an_entry_holds_as_long_as_it_is_renewed(clock: Clock) -> None:
    table = Table(clock)
    assert table.heard(WatchChange("gw", LEASE_MS)), "it is to be read"
    assert not table.knows("gw")
    table.add("gw", {b"0a"}, LEASE_MS)
    clock.now_s += 2
    assert not table.heard(WatchChange("gw", LEASE_MS, [b"0b"], [b"0a"]))
    assert (list(table.watchers(b"0a")), list(table.watchers(b"0b"))) == ([], ["gw"])
    clock.now_s += 2
    table.expire()
    assert table.knows("gw")
    clock.now_s += 1
    assert not table.knows("gw")
    table.expire()
    assert list(table.watchers(b"0b")) == []
    assert table.heard(WatchChange("gw", LEASE_MS)), "to be read again, since changes may have been missed"


def test_an_entry_goes_with_a_word_or_when_the_table_is_away(clock: Clock) -> None:
    table = Table(clock)
    for forget in (lambda: table.heard(WatchChange("gw", 0)), table.clear):
        table.add("gw", {b"0a"}, LEASE_MS)
        forget()
        assert not table.knows("gw")
        assert list(table.watchers(b"0a")) == []


def test_gateway_that_watches_too_many_queues_is_unknown_to_the_table(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "MOST_WATCHED", 2)
    table = Table(clock)
    table.add("gw", {b"0a"}, LEASE_MS)
    table.heard(WatchChange("gw", LEASE_MS, [b"0b", b"0c"]))
    assert not table.knows("gw")


def test_redis_messages_are_as_documented() -> None:
    changes = [WatchChange("gw-1", LEASE_MS, [b"0line/7"], [b"2+/7"]), WatchChange("gw-1", 0)]
    assert [msgspec.msgpack.decode(each, type=WatchChange) for each in vector("watched")] == changes
    assert [msgspec.msgpack.encode(each) for each in changes] == vector("watched")


# --- what a gateway watches


class Writer:
    """Counts how often there is something to write."""

    def __init__(self) -> None:
        self.calls = 0

    def watches_changed(self) -> None:
        self.calls += 1


def test_changes_are_merged_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_module, "MOST_CHANGES", 2)
    queues: dict[Queue, None] = {}
    watched = Watched(queues)
    a, b, c = (queue_named(name, TOPIC, 0) for name in "abc")
    watched.begin(a)
    writer = Writer()
    watched.written_by(writer)
    queues[a] = None
    assert watched.is_all_new, "nothing was written down yet"
    assert watched.names() == [b"0a"]
    watched.begin(b)
    watched.end(a)
    watched.begin(a)
    assert watched.collect_changes() == ([b"0b", b"0a"], [])
    assert watched.collect_changes() == ([], [])
    watched.end(a)
    watched.end(b)
    watched.begin(c)
    assert writer.calls == 6
    assert watched.collect_changes() == ([], []), "too much for that"
    assert watched.is_all_new


def test_queues_are_found_by_name() -> None:
    queues: dict[Queue, None] = {}
    watched = Watched(queues)
    a, b = queue_named("a", TOPIC, 0), queue_named("b", TOPIC, 0)
    queues[a] = None
    watched.begin(a)
    assert watched.find(b"0a") is a
    watched.begin(b)
    assert watched.find(b"0b") is b
    watched.end(a)
    assert watched.find(b"0a") is None
    queues.clear()
    watched.end_all()
    assert watched.find(b"0b") is None


# --- the slow re-check


def test_a_pass_goes_over_all_queues_in_pages(clock: Clock) -> None:
    refs = range(2 * PAGE + 1)
    recheck = Recheck(clock)
    assert recheck.page(refs) == []
    clock.now_s += EVERY_S
    asked: list[int] = []
    for size in (PAGE, PAGE, 1):
        page = recheck.page(refs)
        assert len(page) == size
        assert recheck.page(refs) == [], "the answer is on its way"
        recheck.answered()
        asked += page
    assert sorted(asked) == list(refs)
    assert recheck.page(refs) == []
    clock.now_s += EVERY_S
    assert recheck.page(refs)
    recheck.begin_anew()
    assert recheck.page(refs), "with another store the answer does not come"
    clock.now_s += EVERY_S
    recheck.answered()
    recheck.begin_anew()
    assert recheck.page([]) == []


def test_the_store_says_where_queues_end(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    ref = follow(gateway, "a/1")
    say(bench, "a/1")
    gateway.ask(Check([ref, ref + 1]))
    gateway.flush()
    grew, checked = [frame.message for frame in gateway.frames if isinstance(frame.message, Grew | Checked)]
    assert isinstance(grew, Grew), "what is not said yet is not lost"
    assert checked == Checked([(ref, 1)], bench.store.end)


def test_an_answer_to_a_check_fits_a_frame(bench: WireBench) -> None:
    bench.peers.max_frame_bytes = 4_096
    gateway = bench.connect("gw")
    ref = follow(gateway, "a/1")
    answer = gateway.call(Check([ref] * 1_000))
    assert isinstance(answer, Checked)
    assert 200 < len(answer.queues) < 1_000
