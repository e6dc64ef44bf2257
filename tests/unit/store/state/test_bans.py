"""Bans as a projection of the log: bounds, order, restarts; and what gateways are told of them."""

from pathlib import Path
from typing import Any

import pytest

from lightqueue.message_store import MessageStore
from notify.limits import BadBan, all_told
from notify.local.hub import Hub
from store.state import bans as store_bans
from store.state.bans import BanStates
from store.state.changes import BanLifted, BanSet
from tests.support.stores import small


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = MessageStore(small(tmp_path))
    yield store
    store.close()


def test_ban_is_in_force_until_it_is_lifted(store: MessageStore) -> None:
    hub = Hub(store)
    hub.bans.set(BanSet("address", "192.0.2.7/24", 0, "abuse", "ops"))
    assert [(state.kind, state.value, state.set_by) for state in hub.bans.in_force()] == [
        ("address", "192.0.2.0/24", "ops")
    ]
    assert hub.bans.lift("address", "192.0.2.0/24", "ops")
    assert not hub.bans.lift("address", "192.0.2.0/24", "ops")
    assert hub.bans.in_force() == []


def test_ban_that_has_ended_is_not_in_force(store: MessageStore) -> None:
    hub = Hub(store)
    hub.bans.set(BanSet("user", "u", store.now_ms() - 1, "", "ops"))
    assert hub.bans.in_force() == []


def test_an_address_that_is_none(store: MessageStore) -> None:
    with pytest.raises(BadBan, match="no IP address"):
        Hub(store).bans.set(BanSet("address", "example.org"))


def test_bans_survive_a_restart(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path))
    Hub(store).bans.set(BanSet("user", "u", 0, "why", "ops"))
    Hub(store).bans.set(BanSet("user", "v", 0, "why", "ops"))
    Hub(store).bans.lift("user", "v", "ops")
    store.close()
    store = MessageStore(small(tmp_path))
    assert [state.value for state in store.bans] == ["u"]
    store.close()


def test_there_are_so_many(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bans, "MOST_BANS", 3)
    states: BanStates = store.bans
    states.apply(BanSet("user", "operator's"), 1)
    states.apply(BanSet("user", "automatic", automatic=True), 2)
    states.apply(BanSet("user", "over", until_ms=5), 3)
    states.apply(BanSet("user", "fourth"), 10)
    assert [state.value for state in states] == ["operator's", "automatic", "fourth"]
    states.apply(BanSet("user", "fifth"), 11)
    assert [state.value for state in states] == ["operator's", "fourth", "fifth"]
    states.apply(BanLifted("user", "fourth"), 12)
    assert len(states) == 2


def test_gateways_make_so_many_a_second(store: MessageStore) -> None:
    hub = Hub(store)
    for number in range(1_000):
        hub.bans.made("user", f"u{number}", 0, "wrong passwords", "gw-1")
    assert 20 <= len(store.bans) <= 60


def test_all_are_told_in_frames() -> None:
    states = [store_bans.BanState("user", f"u{number}") for number in range(2_500)]
    frames = all_told(states)
    assert [(len(frame.bans), frame.anew) for frame in frames] == [(1_000, True), (1_000, False), (500, False)]
    assert [(len(frame.bans), frame.anew) for frame in all_told([])] == [(0, True)]
