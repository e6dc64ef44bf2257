"""Requests of peers and the sizes of their answers; peers that break the rules."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from notify.requests import reads
from notify.server import incoming, line
from notify.settings import WireSettings
from store.records._records import ranges_from, records_from
from store.records.records import Record
from store.state.changes import SessionOpened
from store.wire import messages as wire
from store.wire.frames import encode
from store.wire.messages import (
    Append,
    Appended,
    Claim,
    Failed,
    FailureCode,
    Floors,
    Follow,
    Following,
    Goodbye,
    Grew,
    Hello,
    Locate,
    Located,
    Ping,
    Pong,
    Ranges,
    Read,
    ReadAt,
    RecordsAt,
    Retained,
    RetainedFound,
    Role,
)
from tests.support.store_protocol_bench import Talk, WireBench, error_of
from tests.support.stores import batch_of, publish


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WireBench]:
    monkeypatch.setattr(reads, "ANSWER_S", 60)  # a busy machine is not to end an answer
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


@pytest.fixture
def talk(bench: WireBench) -> Talk:
    return bench.connect("gw")


def follow(talk: Talk, topic_filter: str = "t/#") -> int:
    answer = talk.call(Follow(topic_filter, True, -1, False))
    assert isinstance(answer, Following)
    return answer.queues[0].ref


def read(talk: Talk, *ranges: tuple[int, int], records: int = 1_000, max_bytes: int = 1 << 30) -> list[list[bytes]]:
    """The payloads of each range."""
    frame = talk.call_frame(Read(list(ranges), records, max_bytes))
    assert isinstance(frame.message, Ranges)
    found = ranges_from(frame.records, [(first, count) for _, first, count in frame.message.ranges])
    return [[Record._make(part[i]).payload for i in range(len(part))] for part in found]


# --- reading


def test_reading_ranges(bench: WireBench, talk: Talk) -> None:
    refs = [follow(talk), follow(talk, "t/1")]
    publish(bench.store, "t/1", b"1", b"2")
    publish(bench.store, "t/2", b"3")
    assert read(talk, (refs[0], 0), (refs[1], 1), (refs[0], 3)) == [[b"1", b"2", b"3"], [b"2"], []]
    assert read(talk, (refs[0], 1), records=1) == [[b"2"]]
    assert read(talk, (refs[0], 0), (refs[0], 2**63 - 1), max_bytes=1) == [[b"1"], []]


def test_an_answer_has_no_more_than_a_frame_takes(bench: WireBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.peers.max_frame_bytes = 1_000
    talk = bench.connect("gw")
    ref = follow(talk)
    publish(bench.store, "t/1", *(bytes(152) for _ in range(20)))  # 200 bytes each
    sizes = []
    for start in range(20):
        frame = talk.call_frame(Read([(ref, start), (ref, start)], 100, 1 << 20))
        assert frame.size_bytes <= 1_000
        assert isinstance(frame.message, Ranges)
        sizes.append([count for _, _, count in frame.message.ranges])
    assert sizes[0] == [4]
    assert sizes[-2:] == [[2, 2], [1, 1]]
    monkeypatch.setattr(reads, "MOST_RANGES", 2)
    assert len(read(talk, (ref, 20), (ref, 20), (ref, 20))) == 2


def test_no_record_is_passed_over_because_of_those_before_it(bench: WireBench) -> None:
    bench.peers.max_frame_bytes = 1_000
    talk = bench.connect("gw")
    for payload_bytes in range(0, 800, 8):
        topic = f"t/{payload_bytes}"
        ref = follow(talk, topic)
        payloads = [b"%08d" % number + bytes(payload_bytes) for number in range(20)]
        publish(bench.store, topic, *payloads)
        found: list[bytes] = []
        while len(found) < len(payloads) and (came := read(talk, (ref, len(found)))[0]):
            found += came
        assert found == payloads, topic


def test_a_record_larger_than_any_frame_is_passed_over(bench: WireBench) -> None:
    bench.peers.max_frame_bytes = 1_000
    talk = bench.connect("gw")
    ref = follow(talk)
    large = publish(bench.store, "t/1", bytes(2_000), retain=True)
    small = publish(bench.store, "t/2", b"2", retain=True)
    assert talk.call(Read([(ref, 0)], 10, 1 << 20)) == Ranges([(ref, 1, 0)])
    assert read(talk, (ref, 1), (ref, 0)) == [[b"2"]]
    assert talk.call(ReadAt([large, small])) == RecordsAt([False, True])
    assert talk.call(Retained("t/#", "", 10)) == RetainedFound([(large, 0, b""), (small, 0, b"")], None)


def test_a_client_reads_from_where_it_began_to_follow(bench: WireBench) -> None:
    """Follow asks for the right to subscribe: with Read behind it a client without `replay` had all of the history."""
    publish(bench.store, "t/1", b"1", b"2")
    client = bench.connect("sdk", Role.CLIENT)
    following = client.call(Follow("t/1", False, -1, False))
    assert isinstance(following, Following)
    (queue,) = following.queues
    publish(bench.store, "t/1", b"3")
    refused = client.call(Read([(queue.ref, 0)], 10, 1 << 20))
    assert isinstance(refused, Failed)
    assert refused.code == FailureCode.NOT_PERMITTED
    assert client.call(Read([(queue.ref, 2)], 10, 1 << 20)) == Ranges([(queue.ref, 2, 1)])


def test_reading_positions(bench: WireBench, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    first = publish(bench.store, "t/1", b"1")
    second = publish(bench.store, "t/2", b"2")
    frame = talk.call_frame(ReadAt([second, 0, first, 2**63 - 1, first + 1]))
    assert frame.message == RecordsAt([True, False, True, False, False])
    records = records_from(frame.records, 0)
    assert [Record._make(records[i]).payload for i in range(2)] == [b"2", b"1"]
    monkeypatch.setattr(reads, "MOST_RECORDS_AT", 2)
    assert talk.call(ReadAt([first, first, first])) == RecordsAt([True, True])


def test_a_payload_may_look_like_a_record(bench: WireBench, talk: Talk) -> None:
    at = bench.store.end + 40 + 8
    for lengths in ((0, 8), (1, 0)):
        at = bench.store.end + 40 + 8
        fake = struct.pack("<IIQQBBHHHII", 48, 0, at, 0, 16, 0, 0, 0, 0, *lengths) + bytes(8)
        publish(bench.store, "t/123456", fake)
        assert talk.call(ReadAt([at])) == RecordsAt([False])


def test_state_changes_are_not_for_reading(bench: WireBench, talk: Talk) -> None:
    talk.call(Claim("c", False))
    answer = talk.tell_log(1, SessionOpened("c", False, 60))
    assert isinstance(answer, Appended)
    assert talk.call(ReadAt([answer.start, answer.start + 40])) == RecordsAt([False, False])


def test_retained_messages_come_in_pages(bench: WireBench) -> None:
    bench.peers.max_frame_bytes = 4_000
    talk = bench.connect("gw")
    for i in range(200):
        publish(bench.store, f"t/{i:03}", b"1", retain=True)
    pages, after = [], ""
    while True:
        frame = talk.call_frame(Retained("t/+", after, 1_000))
        assert isinstance(frame.message, RetainedFound)
        pages.append(frame.message)
        assert frame.size_bytes <= 4_000
        if frame.message.next is None:
            break
        after = frame.message.next
    assert len(pages) > 1
    found = [message for page in pages for message in page.messages]
    assert [bench.store.record(at).topic for at, *_ in found] == [b"t/%03d" % i for i in range(200)]
    assert talk.call(Retained("t/003", "", 2)) == RetainedFound([found[3]], None)


def test_locating(bench: WireBench, talk: Talk) -> None:
    publish(bench.store, "t/1", b"1", b"2")
    assert talk.call(Locate("t/#", "earliest")) == Located(0)
    assert talk.call(Locate("t/1", "-1h")) == Located(0)
    assert talk.call(Locate("t/1", "1")) == Located(1)
    for topic_filter, where in (("t/+", "earliest"), ("t/1", "yesterday")):
        answer = talk.call(Locate(topic_filter, where))
        assert isinstance(answer, Failed)
        assert answer.code == FailureCode.NO_SUCH_POSITION


def test_floors_of_unknown_queues_are_of_no_interest(talk: Talk) -> None:
    talk.tell(Floors([(7, 3)]))
    assert talk.call(Locate("t", "earliest")) == Located(0)


@pytest.mark.parametrize("bad", ["a/#/b", "a+", "a/b#", "\0", "/" * 200])
def test_a_filter_that_is_none(talk: Talk, bad: str) -> None:
    for request in (Follow(bad, True, -1, False), Locate(bad, "earliest"), Retained(bad, "", 1)):
        answer = talk.call(request)
        assert isinstance(answer, Failed)
        assert answer.code == FailureCode.BAD_REQUEST


def test_a_client_id_that_is_none(talk: Talk) -> None:
    for bad in ("\0", "é" * 40_000):
        answer = talk.call(Claim(bad, False))
        assert isinstance(answer, Failed)
        assert answer.code == FailureCode.BAD_REQUEST


# --- rules of the conversation


def test_requests_wait_while_nothing_is_read(bench: WireBench, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "UNSENT_BYTES", 3_000)
    ref = follow(talk)
    publish(bench.store, "t/1", bytes(1_000))
    asked = [talk.ask(Read([(ref, 0)], 1, 1)) for _ in range(100)]
    assert talk.conversation.is_full
    assert sum(map(len, talk.conversation._out.chunks)) < 3_000 + 2_000
    for request_id in asked:
        assert isinstance(talk.answer(request_id), Ranges)
    assert not talk.conversation.is_full


@pytest.fixture
def _in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much comes in one turn of the loop, it is dealt with there."""
    monkeypatch.setattr(incoming, "WORK_S", 60.0)


@pytest.mark.usefixtures("_in_one_turn")
def test_credit(tmp_path: Path) -> None:
    bench = WireBench(tmp_path, WireSettings(credit_bytes=64 << 10, max_frame_bytes=64 << 10))
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    assert one.welcome.credit_bytes == 64 << 10
    claims = [Claim(f"c-{number:04}", False) for number in range(3_000)]
    for claim in claims:
        one.call(claim)
    two.ask(claims[-1])  # has no answer for a while
    frame = encode(claims[-1], 77)
    fault = error_of(lambda: [two.ask(claim) for claim in claims])
    assert fault == f"a request of {len(frame)} bytes with a credit of {(64 << 10) % len(frame)}"
    three = bench.connect("gw-3")
    asked = three.ask(claims[-1])
    fault = error_of(lambda: three.send(encode(claims[-1], asked)))
    assert fault == f"request_id {asked} is in use by a request without an answer so far"
    bench.store.close()


@pytest.mark.usefixtures("_in_one_turn")
def test_credit_comes_back_with_the_answer(talk: Talk) -> None:
    before = talk.conversation._out.credit.free_bytes
    for sequence in range(1, 200):
        talk.ask(Append(sequence), bytes(batch_of(bytes(1_000))))
    assert talk.conversation._out.credit.free_bytes < before - 200_000
    talk.flush()
    assert talk.conversation._out.credit.free_bytes == before


@pytest.mark.parametrize(
    ("send", "fault"),
    [
        (lambda talk: talk.tell(Hello([1], "gateway", "gw")), "Hello in the middle of a connection"),
        (lambda talk: talk.tell(Grew([], 0)), "Grew is not for a gateway to send"),
        (lambda talk: talk.send(bytes(16)), "a frame cannot be 0 bytes long"),
        (lambda talk: talk.send(b"\xff" * 16), "a frame cannot be 4294967295 bytes long"),
    ],
)
def test_frames_that_break_the_protocol_are_refused(talk: Talk, send: Callable[[Talk], None], fault: str) -> None:
    assert error_of(lambda: send(talk)) == fault


@pytest.mark.usefixtures("_in_one_turn")
def test_too_many_refusals_without_a_pong(talk: Talk) -> None:
    def fill() -> None:
        for sequence in range(1, 1_000, 2):
            talk.ask(Append(sequence), bytes(batch_of(b"x", topic=b"+")))

    assert error_of(fill) == "too many Appends were refused without a Pong in between"


def test_a_ping_is_answered_and_nothing_follows_a_goodbye(talk: Talk) -> None:
    talk.tell(Ping())
    assert [pong.now_ms > 0 for pong in talk.events(Pong)] == [True]
    talk.send(encode(Goodbye("bye")) + encode(Ping()))
    assert talk.conversation.is_closing
    assert talk.events(Pong) == []


def test_a_peer_without_a_name_or_with_that_of_another_role(bench: WireBench, talk: Talk) -> None:
    assert error_of(lambda: bench.connect("")) == (
        "not let in (bad_hello): a peer needs a name that no other process has"
    )
    assert error_of(lambda: bench.connect("gw", Role.CLIENT)) == (
        "not let in (bad_hello): the name 'gw' is that of a gateway"
    )


def test_many_queues_that_grew_take_several_frames(
    bench: WireBench, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST_ITEMS", 3)
    refs = {follow(talk, f"t/{i}") for i in range(10)}
    for i in range(10):
        publish(bench.store, f"t/{i}", b"x")
    bench.tick()
    found = talk.events(Grew)
    assert [len(grew.queues) for grew in found] == [3, 3, 3, 1]
    assert {ref for grew in found for ref, _ in grew.queues} == refs


def test_how_long_requests_wait_is_counted(talk: Talk) -> None:
    """By the request; what has no answer so far is not in it."""
    follow(talk)
    for _ in range(3):
        talk.call(Locate("t/#", "latest"))
    times = talk.figures.request_times
    assert [sum(times[name].counts) for name in ("Follow", "Locate", "Read")] == [1, 3, 0]
    assert 0 < times["Locate"].sum_s < 60
