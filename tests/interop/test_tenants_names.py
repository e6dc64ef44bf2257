"""Two tenants call a client the same, at a real store that is killed under both."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.wire import group_messages as of_group
from store.wire import messages as wire
from store.wire.messages import Role
from tests.support.mqtt_packet_client import write_secret
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import WirePeer
from tests.support.stores import batch_of

TENANTS = ("acme", "beta")
NAME = "producer:orders"


@pytest.fixture
def store(tmp_path: Path) -> StoreProcess:
    tokens = write_secret(tmp_path / "tokens", "".join(f"{tenant} {tenant}-secret\n" for tenant in TENANTS))
    return StoreProcess(tmp_path, settings={"wire.namespace_tokens_file": tokens, "wire.client_token": "for all"})


def come(store: StoreProcess, tenant: str) -> WirePeer:
    return store.connect(NAME, Role.CLIENT, f"{tenant}-secret")


def publish(peer: WirePeer, tenant: str, sequence: int) -> wire.WireMessage:
    records = bytes(batch_of(b"%d" % sequence, topic=f"$ns:{tenant}/t".encode()))
    return peer.call(wire.Publish(sequence, wire.Wait.STORED), records)


def consume(peer: WirePeer, tenant: str) -> of_group.Popped:
    opened = peer.call(of_group.GroupOpen(f"$ns:{tenant}:g", f"$ns:{tenant}/t", "c", None, "earliest"))
    assert isinstance(opened, of_group.GroupOpened)
    popped = peer.call(of_group.Pop(opened.ref, 100, 1 << 20, 0, 0))
    assert isinstance(popped, of_group.Popped)
    return popped


def names_of_groups(peer: WirePeer) -> list[tuple[str, list[str]]]:
    listed = peer.call(of_group.GroupList("", 0))
    assert isinstance(listed, of_group.GroupsListed)
    return [(group.group, [each.peer for each in group.some]) for group in listed.groups]


def test_both_go_on_as_if_the_other_were_not_there(store: StoreProcess) -> None:
    try:
        last = dict.fromkeys(TENANTS, 0)
        for round_ in range(1, 4):
            peers = {tenant: come(store, tenant) for tenant in TENANTS}
            for tenant, peer in peers.items():
                assert peer.welcome.appended == last[tenant]
                for sequence in range(max(1, last[tenant]), last[tenant] + 1 + round_):  # the last one once more
                    assert isinstance(publish(peer, tenant, sequence), wire.Published)
                    last[tenant] = sequence
                handed = consume(peer, tenant).handed
                assert sum(number for *_, number in handed) == last[tenant]
                assert names_of_groups(peer) == [(f"$ns:{tenant}:g", [NAME])]
            store.kill()
            store.start()
        peer = come(store, "acme")
        peer.tell(wire.Goodbye("it ends"))
        beta = come(store, "beta")
        assert beta.welcome.appended == last["beta"]
        consume(beta, "beta")
        assert names_of_groups(beta) == [("$ns:beta:g", [NAME])]
    finally:
        store.close()
