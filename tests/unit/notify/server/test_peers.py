"""Peers by name: appends that are stored once, sessions that are held for who comes back, leases that end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.local.hub import Hub
from notify.local.store import LocalStore
from notify.server.peers import FIND_LEADER_S
from notify.settings import WireSettings
from store.errors import StoreFull
from store.log.commitlog import CommitLog
from store.records._records import RecordBatch
from store.records.records import RecordType, read_records
from store.state.changes import PeerAppended, Progress, SessionClosed, SessionOpened, WillState, decode_change
from store.state.peers import PeerState
from store.wire.messages import (
    Append,
    Appended,
    Claim,
    Claimed,
    FailureCode,
    Follow,
    Following,
    Goodbye,
    Holds,
    Ping,
    Pong,
    Release,
    Role,
    Safe,
    TakenOver,
)
from tests.support.store_protocol_bench import Talk, WireBench, changes_of, failure, message
from tests.support.stores import batch_of, payloads

WILL = WillState("gone/c1", b"gone", 1, False, b"", 0)
LEASE_S = WireSettings().lease_ms / 1000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


def opened(gateway: Talk, sequence: int = 1, client_id: str = "c1", will: WillState | None = None) -> None:
    assert isinstance(gateway.call(Claim(client_id, False)), Claimed)
    answer = gateway.tell_log(sequence, SessionOpened(client_id, False, 3600, will))
    assert isinstance(answer, Appended)


def stored(bench: WireBench) -> list[bytes]:
    return payloads(bench.store, "t/#")


def is_connected(bench: WireBench, client_id: str = "c1") -> bool:
    state = bench.store.sessions.get(client_id)
    return state is not None and state.connected


# --- appends


def test_an_append_is_one_batch_that_says_how_far_the_peer_came(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    answer = gateway.call(Append(1), bytes(batch_of(b"1", b"2", topic=b"t/1")))
    assert isinstance(answer, Appended)
    assert stored(bench) == [b"1", b"2"]
    batch = bench.store.record(answer.start)
    assert (batch.type, batch.length) == (RecordType.BATCH, answer.end - answer.start)
    *_, last = read_records(memoryview(batch.payload))
    assert decode_change(last.type, last.payload) == PeerAppended("gw", 1)


def test_resent_append_is_stored_once(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    gateway.call(Append(1), message(b"1"))
    gateway.call(Append(2), message(b"2"))
    assert gateway.call(Append(1), message(b"1")) == Appended(0, 0)
    gateway.cut()
    again = bench.connect("gw")
    assert (again.welcome.resumed, again.welcome.appended) == (True, 2)
    assert again.call(Append(2), message(b"2")) == Appended(0, 0)
    bench.restart()
    again = bench.connect("gw")
    assert (again.welcome.resumed, again.welcome.appended) == (True, 2)
    assert again.call(Append(2), message(b"2")) == Appended(0, 0)
    assert isinstance(again.call(Append(3), message(b"3")), Appended)
    assert stored(bench) == [b"1", b"2", b"3"]


def test_an_append_is_answered_once_it_is_safe(bench: WireBench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.connect("gw")
    safe = bench.store.end
    monkeypatch.setattr(CommitLog, "safe", property(lambda _: safe))
    asked = [gateway.ask(Append(1), message(b"1")), gateway.ask(Append(2), message(b"2"))]
    assert gateway.answer(asked[0]) is None
    again = gateway.ask(Append(1), message(b"1"))
    assert gateway.answer(again) is None, "it is in the log, but not safe"
    gateway.cut()
    gateway = bench.connect("gw")
    assert gateway.welcome.appended == 0
    resent = [gateway.ask(Append(1), message(b"1")), gateway.ask(Append(2), message(b"2"))]
    assert gateway.answer(resent[0]) is None
    safe = bench.store.end
    bench.hub.safe_advanced()
    assert gateway.woken
    assert [gateway.answer(request_id) for request_id in resent] == [Appended(0, 0), Appended(0, 0)]
    assert gateway.events(Safe) == [], "it follows no queue"
    assert stored(bench) == [b"1", b"2"]


def test_refused_append_is_refused_again_until_the_peer_knows(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    gateway.call(Append(1), message(b"1"))
    gateway.ask(Append(2), message(b"2", topic=b"t/#"))
    gateway.ask(Append(3), message(b"3"))
    gateway.flush()  # as if it did not arrive
    gateway.cut()
    for restarted in (False, True):
        if restarted:
            bench.restart()
        gateway = bench.connect("gw")
        assert gateway.welcome.appended == 1, "what follows a refusal is not confirmed"
        assert failure(gateway.call(Append(2), message(b"2"))) == FailureCode.UNAVAILABLE
        assert gateway.call(Append(3), message(b"3")) == Appended(0, 0)
        gateway.cut()
    assert stored(bench) == [b"1", b"3"]


def test_a_pong_says_that_refusals_are_known(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    assert failure(gateway.call(Append(1), message(b"1", topic=b"+"))) == FailureCode.BAD_REQUEST
    assert len(gateway.events(Ping)) == 1
    gateway.call(Append(2), message(b"2"))
    assert bench.store.peers.get("gw") == PeerState(2, ((1, 1),))
    gateway.tell(Pong())
    gateway.call(Append(3), message(b"3"))
    assert bench.store.peers.get("gw") == PeerState(3, ())
    gateway.cut()
    assert bench.connect("gw").welcome.appended == 3


def test_refusals_in_a_row_are_one_range(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    for sequence in range(1, 1_000):
        gateway.ask(Append(sequence), message(b"x", topic=b"+"))
    gateway.flush()
    gateway.call(Append(1_000), message(b"y"))
    assert bench.store.peers.get("gw") == PeerState(1_000, ((1, 999),))


def test_append_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    bench = WireBench(tmp_path, segment_bytes=64 << 10)
    gateway = bench.connect("gw")
    assert gateway.welcome.max_frame_bytes < 64 << 10
    fits = gateway.welcome.max_frame_bytes - 4_096 - 48
    assert isinstance(gateway.call(Append(1), message(bytes(fits))), Appended)
    found = gateway.call(Append(2), message(bytes(fits + 8)))
    assert failure(found) == FailureCode.RECORD_TOO_LARGE
    bench.store.close()


# --- sessions


def test_a_session_is_held_by_name(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    opened(gateway)
    state = bench.store.sessions.get("c1")
    assert state is not None
    assert state.holder == "gw"


def test_taking_over(bench: WireBench) -> None:
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    opened(one)
    asked = two.ask(Claim("c1", False))
    assert two.answer(asked) is None
    assert one.events(TakenOver) == [TakenOver("c1")]
    one.tell_log(2, SessionClosed("c1", 3600, False))
    claimed = two.answer(asked)
    assert isinstance(claimed, Claimed)
    assert b"c1" in claimed.session
    opened(two)
    assert failure(one.tell_log(3, Progress("c1", acked=5))) == FailureCode.FENCED


def test_a_session_that_goes_on_elsewhere_is_not_ended(bench: WireBench) -> None:
    """Whoever had it may have been unable to say so at the time. What else it says then must not suffer."""
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    opened(one)
    asked = two.ask(Claim("c1", False))
    one.tell_log(2, SessionClosed("c1", 3600, False))
    assert isinstance(two.answer(asked), Claimed)
    opened(two)
    assert isinstance(one.tell_log(3, SessionClosed("c1", 3600, False)), Appended)
    state = bench.store.sessions.get("c1")
    assert state is not None
    assert (state.connected, state.holder) == (True, "gw-2")


def test_a_session_without_a_record_is_released(bench: WireBench) -> None:
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    assert one.call(Claim("c1", True)) == Claimed(b"", one.welcome.log_end)
    asked = two.ask(Claim("c1", True))
    assert one.events(TakenOver) == [TakenOver("c1")]
    one.tell(Release("c1"))
    assert two.answer(asked) == Claimed(b"", two.welcome.log_end)


def test_a_session_is_claimed_by_several(bench: WireBench) -> None:
    one, two, three = (bench.connect(f"gw-{i}") for i in range(3))
    one.call(Claim("c1", True))
    second, third = two.ask(Claim("c1", True)), three.ask(Claim("c1", True))
    assert one.events(TakenOver) == [TakenOver("c1")]
    assert isinstance(one.call(Claim("c1", True)), Claimed), "it has it, still"
    assert one.events(TakenOver) == [TakenOver("c1")]
    one.tell(Release("c1"))
    assert isinstance(two.answer(second), Claimed)
    assert two.events(TakenOver) == [TakenOver("c1")]
    assert three.answer(third) is None
    two.cut()
    bench.wait(LEASE_S / 2)
    three.ping()
    bench.wait(LEASE_S / 2 + 0.1)
    assert isinstance(three.answer(third), Claimed)


def test_a_gateway_waits_for_a_session_once(bench: WireBench) -> None:
    """A client that loses patience asks again, and again; what it asked for first must not be in its own way."""
    one, two, three = (bench.connect(f"gw-{i}") for i in range(3))
    one.call(Claim("c1", True))
    first = two.ask(Claim("c1", True))
    other = three.ask(Claim("c1", True))
    last = two.ask(Claim("c1", True))
    assert isinstance(two.answer(first), Claimed)
    assert two.answer(last) is None
    one.tell(Release("c1"))
    assert isinstance(three.answer(other), Claimed)
    three.tell(Release("c1"))
    assert isinstance(two.answer(last), Claimed)


def test_claims_and_take_overs_are_repeated_after_a_cut(bench: WireBench) -> None:
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    opened(one)
    one.cut()
    asked = two.ask(Claim("c1", False))
    two.cut()
    two = bench.connect("gw-2")
    asked = two.ask(Claim("c1", False))
    one = bench.connect("gw-1")
    assert one.welcome.resumed
    assert one.events(TakenOver) == [TakenOver("c1")]
    one.tell_log(2, SessionClosed("c1", 3600, False))
    assert isinstance(two.answer(asked), Claimed)
    assert two.events(TakenOver) == []


# --- leases


def test_silent_peer_is_gone_and_its_wills_are_sent_once(bench: WireBench) -> None:
    gateway = bench.connect("gw-1")
    opened(gateway, will=WILL)
    gateway.cut()
    bench.wait(LEASE_S - 0.2)
    assert is_connected(bench)
    bench.wait(0.4)
    assert not is_connected(bench)
    assert payloads(bench.store, "gone/#") == [b"gone"]
    assert bench.store.peers.get("gw-1") is None
    bench.wait(LEASE_S)
    bench.restart()
    bench.wait(2 * LEASE_S)
    assert payloads(bench.store, "gone/#") == [b"gone"]
    gateway = bench.connect("gw-1")
    assert (gateway.welcome.resumed, gateway.welcome.appended) == (False, 0)


def test_peers_have_time_to_come_to_a_store_that_leads(bench: WireBench) -> None:
    gateway = bench.connect("gw-1")
    opened(gateway, will=WILL)
    gateway.cut()
    bench.wait(LEASE_S - 0.2)
    bench.peers.wait_for_all()
    bench.wait(FIND_LEADER_S + LEASE_S - 0.2)
    assert is_connected(bench)
    bench.wait(0.4)
    assert not is_connected(bench)


def test_a_silent_connection_is_ended(bench: WireBench) -> None:
    silent, other = bench.connect("gw-1"), bench.connect("gw-2")
    for _ in range(10):
        bench.wait(LEASE_S / 4)
        other.ping()
    silent.flush()
    assert silent.conversation.is_closing
    assert [frame.message for frame in silent.frames][-1] == Goodbye("not heard of for 2000 ms")
    assert not other.conversation.is_closing
    assert bench.peers.leases_ended == 1


def test_claimed_session_of_a_silent_peer_is_granted_after_its_lease(bench: WireBench) -> None:
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    opened(one)
    asked = two.ask(Claim("c1", False))
    bench.wait(LEASE_S / 2)
    two.ping()
    bench.wait(LEASE_S / 2 + 0.1)
    two.ping()
    assert isinstance(two.answer(asked), Claimed)


def test_a_goodbye_ends_a_lease_at_once(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    opened(gateway, will=WILL)
    gateway.tell(Goodbye("stopping"))
    assert not is_connected(bench)
    assert bench.store.peers.get("gw") is None
    assert bench.peers.leases_ended == 0


def test_a_store_that_stood_still_blames_nobody(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    bench.wait(1)
    gateway.ping()
    bench.now_s += 60
    bench.tick()
    assert not gateway.conversation.is_closing
    bench.wait(LEASE_S / 2)
    gateway.ping()
    bench.wait(LEASE_S - 0.1)
    assert not gateway.conversation.is_closing
    bench.wait(1)
    assert gateway.conversation.is_closing


def test_a_restarted_store_holds_sessions_for_who_comes_back(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    opened(gateway, will=WILL)
    before = gateway.welcome.store_name
    bench.restart()
    assert is_connected(bench)
    gateway = bench.connect("gw")
    assert gateway.welcome.resumed
    assert gateway.welcome.store_name != before
    other = bench.connect("gw-2")
    other.ask(Claim("c1", False))
    assert gateway.events(TakenOver) == [TakenOver("c1")]
    assert payloads(bench.store, "gone/#") == []


def test_a_restarted_store_is_told_of_connections_that_the_log_does_not_know(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    gateway.tell_log(1, Progress("c0"))  # so that the gateway itself is known
    for client_id in ("c1", "c2", "c3"):
        gateway.call(Claim(client_id, True))
    bench.restart()
    other = bench.connect("gw-2")
    other.call(Claim("c2", True))
    gateway = bench.connect("gw")
    gateway.tell(Holds(["c1", "c2"]))
    assert gateway.events(TakenOver) == [TakenOver("c2")], "another has a newer connection of its"
    gateway.tell(Release("c2"))
    assert other.events(TakenOver) == []
    asked = other.ask(Claim("c1", True))
    assert gateway.events(TakenOver) == [TakenOver("c1")]
    gateway.tell(Release("c1"))
    assert isinstance(other.answer(asked), Claimed)
    assert isinstance(other.call(Claim("c3", True)), Claimed)


def test_a_restarted_store_waits_no_longer_than_a_lease(bench: WireBench) -> None:
    opened(bench.connect("gw"), will=WILL)
    bench.restart()
    bench.wait(LEASE_S + 0.1)
    assert not is_connected(bench)
    assert payloads(bench.store, "gone/#") == [b"gone"]
    assert not bench.connect("gw").welcome.resumed


def test_a_gateway_that_has_not_appended_is_remembered_and_a_client_is_not(bench: WireBench) -> None:
    bench.connect("gw")
    bench.connect("sdk", Role.CLIENT)
    bench.restart()
    assert bench.connect("gw").welcome.resumed
    assert not bench.connect("sdk", Role.CLIENT).welcome.resumed


def test_a_store_without_a_wire_forgets_peers(bench: WireBench) -> None:
    opened(bench.connect("gw"), will=WILL)
    Hub(bench.store)
    assert not is_connected(bench)
    assert list(bench.store.peers) == []
    assert payloads(bench.store, "gone/#") == [b"gone"]


def test_sessions_of_the_stores_own_process_end_with_it(bench: WireBench) -> None:
    opened(bench.connect("gw"))
    LocalStore.join(bench.hub, "gateway").appends.append(
        RecordBatch.adopt(changes_of(SessionOpened("c2", False, 3600)), bytes(RecordType))
    )
    bench.restart()
    assert (is_connected(bench, "c1"), is_connected(bench, "c2")) == (True, False)


# --- names


def test_a_second_connection_replaces_the_first(bench: WireBench) -> None:
    first = bench.connect("gw")
    opened(first)
    second = bench.connect("gw")
    assert second.welcome.resumed
    assert first.events(Goodbye) == [Goodbye("the same peer made another connection")]
    first.cut()
    bench.wait(LEASE_S / 2)
    second.ping()
    bench.wait(LEASE_S / 2 + 0.1)
    assert is_connected(bench)


# --- a full disk


def test_a_full_disk_refuses_appends_and_goes_on(bench: WireBench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.connect("gw")
    opened(gateway, will=WILL)
    with monkeypatch.context() as full:
        full.setattr(CommitLog, "append", _no_room)
        assert failure(gateway.call(Append(2), message(b"2"))) == FailureCode.STORE_FULL
        assert failure(gateway.call(Append(2), message(b"2"))) == FailureCode.UNAVAILABLE
        assert isinstance(gateway.call(Follow("t/#", True, -1, False)), Following)
        gateway.cut()
        bench.wait(LEASE_S + 0.1)
        assert bench.peers.leases_ended == 1
        assert bench.store.peers.get("gw") is not None
        bench.connect("gw-2").call(Claim("c2", False))
        assert is_connected(bench)
    bench.wait(1.1)
    assert not is_connected(bench)
    assert payloads(bench.store, "gone/#") == [b"gone"]
    assert bench.store.peers.get("gw") is None
    assert bench.connect("gw").welcome.appended == 0


def test_appends_sent_before_a_refusal_was_heard_are_refused(bench: WireBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be room again by then: a publisher's later messages must not stand before those that it sends again."""
    gateway = bench.connect("gw")
    with monkeypatch.context() as full:
        full.setattr(CommitLog, "append", _no_room)
        first = gateway.ask(Append(1), message(b"1"))
        gateway.flush()
    later = [gateway.ask(Append(sequence), message(b"later")) for sequence in (2, 3)]
    gateway.flush()
    assert failure(gateway.answer(first)) == FailureCode.STORE_FULL
    assert [failure(gateway.answer(each)) for each in later] == [FailureCode.UNAVAILABLE] * 2
    gateway.tell(Pong())
    assert isinstance(gateway.call(Append(4), message(b"1")), Appended)
    assert stored(bench) == [b"1"]


def test_a_new_connection_goes_on_behind_a_refusal(bench: WireBench, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = bench.connect("gw")
    with monkeypatch.context() as full:
        full.setattr(CommitLog, "append", _no_room)
        assert failure(gateway.call(Append(1), message(b"1"))) == FailureCode.STORE_FULL
    gateway.cut()
    gateway = bench.connect("gw")
    assert failure(gateway.call(Append(1), message(b"1"))) == FailureCode.UNAVAILABLE, "it was refused already"
    assert failure(gateway.call(Append(2), message(b"2"))) == FailureCode.UNAVAILABLE, "the peer may not know that"
    gateway.tell(Pong())
    gateway.tell(Pong())
    assert isinstance(gateway.call(Append(3), message(b"2")), Appended)
    assert stored(bench) == [b"2"]


def _no_room(log: CommitLog, *_: object) -> int:
    raise StoreFull(log.folder)
