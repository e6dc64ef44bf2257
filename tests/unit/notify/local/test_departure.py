"""A gateway with many clients is gone: its sessions are closed a few at a time, those that others want at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.local.hub import SESSIONS_PER_STEP
from store.errors import StoreFull
from store.log.commitlog import CommitLog
from store.state.changes import SessionOpened, WillState
from store.state.sessions import SessionState
from store.wire.messages import Claim, Claimed, Follow, Goodbye
from tests.support.store_protocol_bench import Talk, WireBench
from tests.support.stores import payloads

CLIENTS = 3 * SESSIONS_PER_STEP


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


@pytest.fixture
def gateway(bench: WireBench) -> Talk:
    """With many clients, each with a will and a queue that is followed."""
    gateway = bench.connect("gw-1")
    for i in range(CLIENTS):
        gateway.ask(Claim(f"c{i}", False))
        gateway.call(Follow(f"to/{i}", True, -1, True))
    opened = (
        SessionOpened(f"c{i}", False, 3600, WillState("will/all", b"%d" % i, 1, False, b"", 0)) for i in range(CLIENTS)
    )
    gateway.tell_log(1, *opened)
    return gateway


def connected(bench: WireBench) -> list[SessionState]:
    return [state for state in bench.store.sessions if state.connected]


def test_departure_closes_sessions_in_steps(bench: WireBench, gateway: Talk) -> None:
    gateway.tell(Goodbye("bye"))
    left = []
    while bench.peers.go_on():
        assert bench.store.peers.get("gw-1") is not None
        left.append(len(connected(bench)))
    assert left == [SESSIONS_PER_STEP, 0]
    assert sorted(payloads(bench.store, "will/#")) == sorted(b"%d" % i for i in range(CLIENTS))
    assert bench.store.peers.get("gw-1") is None
    bench.restart()
    assert connected(bench) == []


def test_claimed_sessions_of_a_departure_are_closed_first(bench: WireBench, gateway: Talk) -> None:
    other = bench.connect("gw-2")
    waiting = [other.ask(Claim(f"c{i}", False)) for i in range(10)]
    other.call(Follow("to/0", True, -1, True))  # so all of them are there, in however many turns
    gateway.tell(Goodbye("bye"))
    assert all(isinstance(other.answer(claim), Claimed) for claim in waiting)
    assert len(connected(bench)) == CLIENTS - SESSIONS_PER_STEP
    for state in (connected(bench)[0], connected(bench)[-1]):
        assert isinstance(other.call(Claim(state.client_id, False)), Claimed)
        assert not state.connected
        other.tell_log(1, SessionOpened(state.client_id, False, 3600, None))
    while bench.peers.go_on():
        pass
    assert sorted(payloads(bench.store, "will/#")) == sorted(b"%d" % i for i in range(CLIENTS))


def test_gateway_returns_under_its_name_during_its_departure(bench: WireBench, gateway: Talk) -> None:
    gateway.tell(Goodbye("bye"))
    again = bench.connect("gw-1")
    assert not again.welcome.resumed
    state = connected(bench)[0]
    assert isinstance(again.call(Claim(state.client_id, False)), Claimed)
    again.tell_log(again.welcome.appended + 1, SessionOpened(state.client_id, False, 3600, None))
    while bench.peers.go_on():
        pass
    assert connected(bench) == [state]
    assert bench.store.peers.get("gw-1") is not None


def test_a_full_disk_delays_it(bench: WireBench, gateway: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(log: CommitLog, *_: object) -> int:
        raise StoreFull(log.folder)

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "append", full)
        gateway.tell(Goodbye("bye"))
        assert not bench.peers.go_on()
        assert len(connected(bench)) == CLIENTS
        other = bench.connect("gw-2")
        assert isinstance(other.call(Claim("c0", False)), Claimed)
    bench.wait(1.1)
    while bench.peers.go_on():
        pass
    assert [state.client_id for state in connected(bench)] == ["c0"]  # it is the other's
    assert bench.store.peers.get("gw-1") is None
