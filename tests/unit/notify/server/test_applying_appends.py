"""A gateway's large Append is applied in steps: what waits, what is told, and who has which session meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue import message_store
from lightqueue.message_store import MessageStore
from lightqueue.upkeep import applying
from notify.server.applying import ApplyingSteps
from notify.settings import WireSettings
from store.errors import IndexFailed
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.state.changes import (
    Change,
    GroupAdvanced,
    SessionClosed,
    SessionOpened,
    Subscribed,
    SubscriptionState,
    WillState,
    encode_change,
)
from store.wire.group_messages import GroupOpen, GroupOpened, Pop, Popped
from store.wire.messages import Append, Appended, Claim, Claimed, Grew, Holds, Ping, Pong, Pushed, Read, Role, TakenOver
from tests.support.store_protocol_bench import NotedUpkeep, Talk, WireBench, message
from tests.support.stores import payloads, publish, small
from tests.unit.notify.server.test_applying import COUNT, apply_all, follow, records, topic_end

OPENED = SessionOpened("c1", False, 3600)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record at a time."""
    monkeypatch.setattr(message_store, "FIRST_WORK", 1)
    monkeypatch.setattr(applying.Applying.step, "__defaults__", (1,))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path / "data")
    yield bench
    bench.store.close()


def with_changes(*items: Change | bytes) -> bytes:
    """Records of changes, and of messages with these payloads."""
    batch = RecordBatch()
    for item in items:
        if isinstance(item, bytes):
            batch.append(RecordType.MESSAGE, item, topic=b"load/b")
        else:
            batch.append(*encode_change(item))
    return bytes(batch)


def finish(bench: WireBench) -> None:
    """As the loop does, with what follows from the last step."""
    turns: list[object] = []
    steps = ApplyingSteps(bench.hub, turns.append, NotedUpkeep(bench.store))
    steps.go_on()
    while turns:
        turns.pop()()  # type: ignore[operator]
    assert not bench.store.applying.left_bytes


def appended(bench: WireBench, gateway: Talk, sequence: int, data: bytes) -> Appended:
    request = gateway.ask(Append(sequence), data)
    finish(bench)
    answer = gateway.answer(request)
    assert isinstance(answer, Appended)
    return answer


def claimed(gateway: Talk, client_id: str = "c1") -> None:
    assert isinstance(gateway.call(Claim(client_id, False)), Claimed)


def holder(bench: WireBench, client_id: str = "c1") -> str | None:
    found = bench.hub.claims.holder(client_id)
    return found.name if found is not None else None


def test_applying_an_append_serves_other_peers_and_delays_the_next_request(bench: WireBench) -> None:
    one, two, client = bench.connect("gw-1"), bench.connect("gw-2"), bench.connect("client", Role.CLIENT)
    refs = follow(two)
    ends = [bench.store.end]
    request = one.ask(Append(1), records())
    one.tell(Ping())
    behind = one.ask(Append(2), message(b"behind", b"load/b"))
    assert topic_end(bench.store) == 1
    two.tell(Ping())
    client.tell(Ping())
    assert two.events(Pong)
    assert client.events(Pong)
    assert not two.events(Grew)
    assert not two.events(Pushed)
    assert two.call(Read([(refs[0], 0)], 100, 1 << 20)) is not None
    while bench.store.applying.step():
        ends.append(bench.store.end)
        assert bench.store.safe <= ends[-1]
        assert one.answer(request) is one.answer(behind) is None
        assert not one.events(Pong)
    assert ends == sorted(set(ends))
    assert len(ends) == COUNT
    bench.hub.tell_changes()
    assert [*two.events(Grew), *two.events(Pushed)]
    answer = one.answer(request)
    assert isinstance(answer, Appended)
    assert ends[-1] < answer.end
    assert one.events(Pong)
    apply_all(bench)
    second = one.answer(behind)
    assert isinstance(second, Appended)
    assert second.start == answer.end
    assert topic_end(bench.store) == COUNT + 1
    assert not one.conversation.has_unanswered


def test_a_gateway_that_comes_back_meanwhile_waits_and_its_append_is_stored_once(bench: WireBench) -> None:
    one = bench.connect("gw-1")
    one.ask(Append(1), records())
    one.cut()
    again, other = bench.connect("gw-1", waits=True), bench.connect("gw-2", waits=True)
    bench.store.applying.step()
    for each in (again, other):
        each.flush()
        assert not each.is_welcome
    assert bench.store.applying.left_bytes, "it was not applied at once for them"
    apply_all(bench)
    for each in (again, other):
        each.flush()
        assert each.is_welcome
    assert again.welcome.resumed
    assert not other.welcome.resumed
    assert again.call(Append(1), records()) == Appended(0, 0)
    assert topic_end(bench.store) == COUNT
    assert appended(bench, again, 2, message(b"next", b"load/b")).start
    assert topic_end(bench.store) == COUNT + 1


def test_a_gateway_that_leaves_while_it_waits_is_not_let_in(bench: WireBench) -> None:
    one = bench.connect("gw-1")
    one.ask(Append(1), records())
    other = bench.connect("gw-2", waits=True)
    other.cut()
    apply_all(bench)
    assert bench.store.peers.get("gw-2") is None
    assert "gw-2" not in bench.hub.gateways


def test_a_session_opened_in_it_is_the_gateway_s_once_all_is_applied(bench: WireBench) -> None:
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    subscribed = Subscribed("c1", [SubscriptionState("load/+", 1)])
    request = one.ask(Append(1), with_changes(OPENED, b"a", subscribed, b"b", b"c"))
    asked = two.ask(Claim("c1", False))
    one.cut()
    while bench.store.applying.step():
        assert two.answer(asked) is None
    bench.hub.tell_changes()
    assert holder(bench) == "gw-1"
    assert two.answer(asked) is None
    assert payloads(bench.store, "load/+") == [b"b", b"c"]
    one = bench.connect("gw-1")
    assert one.events(TakenOver) == [TakenOver("c1")]
    assert one.answer(request) is None  # it was asked on another connection
    appended(bench, one, 2, with_changes(SessionClosed("c1", 3600, False)))
    assert isinstance(two.answer(asked), Claimed)


def test_a_session_that_is_free_in_the_middle_is_given_to_nobody(bench: WireBench) -> None:
    """A read tells of what grew; it does not look who waits for a session."""
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    refs = follow(two)
    claimed(one)
    appended(bench, one, 1, with_changes(OPENED))
    asked = two.ask(Claim("c1", False))
    assert one.events(TakenOver) == [TakenOver("c1")]
    one.ask(Append(2), with_changes(SessionClosed("c1", 3600, False), b"a", OPENED, b"b"))
    bench.store.applying.step()
    reader = bench.connect("reader", Role.CLIENT)
    read = reader.ask(Read([(refs[0], 0)], 100, 1 << 20))
    assert reader.answer(read) is not None
    assert bench.store.applying.left_bytes
    finish(bench)
    assert holder(bench) == "gw-1"
    assert two.answer(asked) is None
    assert one.events(TakenOver) == [TakenOver("c1")], "it has to let go once more"
    appended(bench, one, 3, with_changes(SessionClosed("c1", 3600, False)))
    assert isinstance(two.answer(asked), Claimed)


def test_a_connection_that_another_has_had_for_longer_is_not_forgotten(bench: WireBench) -> None:
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    two.tell(Holds(["c0", "c1"]))
    one.ask(Append(1), with_changes(SessionOpened("c2", False, 3600), b"a", b"b"))
    bench.hub.claims.hold_again(two.conversation.peer.member, "c2")  # type: ignore[union-attr]
    finish(bench)
    assert holder(bench, "c2") == "gw-2"
    assert one.events(TakenOver) == [TakenOver("c2")]


def test_a_will_is_sent_behind_the_last_step(bench: WireBench) -> None:
    one = bench.connect("gw-1")
    will = WillState("gone/c1", b"gone", 1, False, b"", 0)
    appended(bench, one, 1, with_changes(SessionOpened("c1", False, 0, will)))
    one.ask(Append(2), with_changes(SessionClosed("c1", 0, True), b"a", b"b"))
    bench.store.applying.step()
    bench.tick()
    assert payloads(bench.store, "gone/#") == []
    finish(bench)
    assert payloads(bench.store, "gone/#") == [b"gone"]


def test_a_will_is_not_sent_of_a_client_that_comes_back_in_the_same_append(bench: WireBench) -> None:
    one = bench.connect("gw-1")
    will = WillState("gone/c1", b"gone", 1, False, b"", 0)
    back = SessionOpened("c1", False, 3600, will)
    appended(bench, one, 1, with_changes(back))
    one.ask(Append(2), with_changes(SessionClosed("c1", 3600, True), b"a", back, b"b"))
    bench.store.applying.step()
    bench.tick()  # as after a step that failed
    assert bench.store.applying.left_bytes
    finish(bench)
    assert payloads(bench.store, "gone/#") == []


def test_messages_of_a_group_that_a_session_took_are_done_with(bench: WireBench) -> None:
    one, two = bench.connect("gw-1"), bench.connect("gw-2")
    opened = one.call(GroupOpen("g", "t/#", "c", None, "earliest"))
    assert isinstance(opened, GroupOpened)
    publish(bench.store, "t/1", b"0", b"1")
    assert isinstance(one.call(Pop(opened.ref, 10, 1 << 20, 0, 0)), Popped)
    one.ask(Append(1), with_changes(b"a", GroupAdvanced("g", "t/#", done=(0, 2)), b"b"))
    (group,) = bench.hub.consumers.listed("g")
    assert group.group.consumers
    two.tell(Ping())
    finish(bench)
    assert group.group.acked_offset == 2
    bench.restart()
    (group,) = bench.hub.consumers.listed("g")
    assert group.group.acked_offset == 2


def test_a_gateway_that_is_silent_while_it_waits_is_not_gone(bench: WireBench) -> None:
    one = bench.connect("gw-1")
    one.ask(Append(1), records())
    bench.wait(2 * WireSettings().lease_ms / 1000)  # as after a step that failed
    assert bench.store.applying.left_bytes
    finish(bench)
    bench.peers.tick()
    assert bench.hub.gateways["gw-1"] is one.conversation.peer.member  # type: ignore[union-attr]
    assert not bench.peers.leases_ended


def test_changes_applied_before_a_failed_step_are_not_applied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "FIRST_WORK", 1_000_000)
    store = MessageStore(small(tmp_path / "data"))
    applied: list[Change] = []
    apply = store.sessions.apply

    def noted(change: Change, log_offset: int, timestamp_ms: int) -> None:
        applied.append(change)
        apply(change, log_offset, timestamp_ms)

    monkeypatch.setattr(store.sessions, "apply", noted)

    def fail(_: bytes) -> None:
        raise IndexFailed(tmp_path, "cannot be read")

    batch = RecordBatch()
    batch.append(*encode_change(OPENED))
    batch.append(RecordType.MESSAGE, b"", topic=b"load/b")
    batch.append(*encode_change(SessionClosed("c1", 3600, False)))
    with monkeypatch.context() as broken:
        broken.setattr(store.queues, "stored_topic", fail)
        broken.setattr(store.queues, "load_topic", fail)
        store.append_in_steps(batch)  # the log has it: it is no failure
        assert store.applying.has_failed
        assert len(applied) == 1
        with pytest.raises(IndexFailed):
            store.applying.step()
    assert store.end < store.log.end
    store.applying.finish()
    assert [type(each) for each in applied] == [SessionOpened, SessionClosed]
    assert store.end == store.log.end
    assert topic_end(store) == 1
    store.close()


@pytest.mark.parametrize("is_first", [True, False])
def test_waiting_append_of_a_replaced_connection_is_not_stored(bench: WireBench, is_first: bool) -> None:
    """The peer sends it again there, perhaps in other pieces."""
    other, old = bench.connect("gw-2"), bench.connect("producer:feed", Role.CLIENT)
    other.ask(Append(1), records())
    assert bench.store.applying.left_bytes
    old.ask(Append(9), message(b"7", b"feed") + message(b"8", b"feed"))
    new = bench.connect("producer:feed", Role.CLIENT)
    again = new.ask(Append(8), message(b"7", b"feed"))
    for each in (old, new) if is_first else (new, old):
        finish(bench)
        each.flush()
    finish(bench)
    assert isinstance(new.answer(again), Appended)
    assert payloads(bench.store, "feed") == [b"7"]
