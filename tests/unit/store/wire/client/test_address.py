"""The addresses of a cluster: how they are written, and in which order a link tries them."""

from __future__ import annotations

import pytest

from notify.links.address import StoreAddress, StoreAddressError
from penstock.sdk.address import Address
from penstock.sdk.errors import AddressError
from store.wire.client.address import ConnectionRound, Endpoint, StorePort

A, B, C = (Endpoint(f"store-{n}", f"10.0.0.{n}", 7700) for n in (1, 2, 3))


def tried(stores: ConnectionRound) -> list[Endpoint]:
    found = []
    while not stores.is_over:
        found.append(stores.next())
    return found


def test_a_round_tries_each_endpoint_once() -> None:
    assert tried(ConnectionRound([A, B, A, C])) == [A, B, C]
    assert ConnectionRound().is_over


def test_the_leader_that_a_store_names_is_tried_next() -> None:
    stores = ConnectionRound([A, B, C])
    stores.next()
    stores.leader("10.0.0.3:7700")
    assert tried(stores) == [C, B]


def test_a_leader_that_is_no_address_of_the_user_is_tried_too() -> None:
    stores = ConnectionRound([A])
    stores.next()
    stores.leader("10.0.0.9:7701")
    assert tried(stores) == [Endpoint("10.0.0.9", "10.0.0.9", 7701)]


def test_the_leader_has_a_name() -> None:
    stores = ConnectionRound([A, B, C])
    stores.next()
    stores.leader("store-3:7700")
    assert stores.to_look_up() is None
    assert tried(stores) == [C, B]


def test_the_leader_has_a_name_that_is_looked_up() -> None:
    stores = ConnectionRound([A])
    stores.next()
    stores.leader("store-9:7701")
    assert stores.to_look_up() == StorePort("store-9", 7701)
    stores.found([Endpoint("store-9", "10.0.0.9", 7701), A])
    assert tried(stores) == [Endpoint("store-9", "10.0.0.9", 7701)]
    stores.leader("store-9:7701")  # it does not lead either
    assert tried(stores) == []


def test_stores_that_say_nothing_come_last() -> None:
    stores = ConnectionRound([A, B, C], [A])
    assert stores.next() == B
    stores.leader("10.0.0.1:7700")
    assert tried(stores) == [C, A]


def test_stores_that_name_new_names_do_not_keep_a_round_going() -> None:
    stores = ConnectionRound([A])
    stores.next()
    looked_up = 0
    while stores.to_look_up() is not None or not looked_up:
        looked_up += 1
        stores.leader(f"store-{looked_up}.example:7700")
    assert looked_up < 20


def test_stores_that_name_one_another_do_not_keep_a_round_going() -> None:
    stores = ConnectionRound([A, B])
    for _ in range(2):
        named = stores.next()
        stores.leader("10.0.0.2:7700" if named == A else "10.0.0.1:7700")
    assert stores.is_over


@pytest.mark.parametrize("leader", ["", "10.0.0.2", "somewhere", "10.0.0.2:x", "10.0.0.2:99999", "u@10.0.0.2:1", "::1"])
def test_invalid_leader_address_is_ignored(leader: str) -> None:
    stores = ConnectionRound([A, B])
    stores.next()
    stores.leader(leader)
    assert tried(stores) == [B]


def test_several_stores_in_one_url() -> None:
    assert Address.parse("penstock://a,[::1]:7701").ports == (StorePort("a", 7700), StorePort("::1", 7701))
    gateway = StoreAddress.parse("tls://a:7700,b:7701")
    assert gateway == StoreAddress("tls://a:7700,b:7701", "a", 7700, is_tls=True, others=(StorePort("b", 7701),))
    assert StoreAddress.parse("unix:///run/store.sock").ports == ()


@pytest.mark.parametrize(
    "places", ["a:1,", ",a:1", "a:1,,b:1", "a:1,b:x", "a:1,b:1/c", "u:p@a:1", "a:1,u@b:1", "a:1 ,b:1"]
)
def test_invalid_lists_of_stores_are_refused(places: str) -> None:
    with pytest.raises(AddressError, match="not the address of a store"):
        Address.parse(f"penstock://{places}")
    with pytest.raises(StoreAddressError, match="not the address of a store"):
        StoreAddress.parse(f"tcp://{places}")
