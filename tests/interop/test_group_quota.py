"""How many consumer groups a user may have in a store, whatever gateway its clients are at, and what is given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import QoS, SubAck, Subscribe, SubscriptionRequest
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.part import Part
from penstock.sync import Client
from store.wire import group_messages as wire
from store.wire.messages import Role
from tests.interop.programs import TIMEOUT_S
from tests.support.mqtt_packet_client import Device, write_passwords
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

MOST = 3
OK, EXCEEDED = ReasonCode.GRANTED_QOS_1, ReasonCode.QUOTA_EXCEEDED


class Site:
    """A store and two gateways, as processes of their own; users alice and bob, and anonymous clients."""

    def __init__(self, folder: Path) -> None:
        passwords = write_passwords(folder / "passwords", {"alice": "a", "bob": "b"})
        of_gateway = {"auth.password_file": passwords, "auth.allow_anonymous": "true"}
        self.store = StoreProcess(folder, settings={"quota.user_groups": MOST})
        self._ports = [free_port(), free_port()]
        self._parts: list[Part] = [self.store]
        for port in self._ports:
            command = ["gateway", "--store", self.store.url, "--listen", f"mqtt://127.0.0.1:{port}"]
            self._parts.append(Part(folder / f"gateway-{port}.log", command, of_gateway))
        self._devices = 0

    def device(self, *who: str, client_id: str = "", expiry_s: int = 3_600) -> Device:
        """At one gateway and the other in turn."""
        self._devices += 1
        device = Device(self._ports[self._devices % 2], client_id or f"d{self._devices}")
        connack = device.connect(*who, clean_start=False, session_expiry_interval=expiry_s)
        assert connack.reason_code is ReasonCode.SUCCESS
        return device

    def groups(self) -> set[str]:
        with self.store.connect(f"list-{self._devices}", Role.CLIENT) as peer:
            found = peer.call(wire.GroupList("", 0))
        self._devices += 1
        assert isinstance(found, wire.GroupsListed)
        return {each.group for each in found.groups}

    def close(self) -> None:
        for part in reversed(self._parts):
            part.kill()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def joined(device: Device, *names: str) -> SubAck:
    asked = tuple(SubscriptionRequest(f"$share/{name}/t/#", QoS.AT_LEAST_ONCE) for name in names)
    device.send(Subscribe(1, asked))
    return device.next(SubAck)


def test_a_users_groups_over_gateways_and_kills(site: Site) -> None:
    for number in range(MOST):
        assert joined(site.device("alice", "a"), f"a{number}").reason_codes == (OK,)
    refused = joined(site.device("alice", "a"), "a3", "a0")
    assert refused.reason_codes == (EXCEEDED, OK)  # one that is there is no new one
    assert "quota.user_groups: user alice made 3 groups" in (refused.properties.reason_string or "")
    assert joined(site.device("bob", "b"), "b0").reason_codes == (OK,)
    site.store.kill()
    site.store.start()
    wait_until(lambda: joined(site.device("bob", "b"), "b1").reason_codes == (OK,), TIMEOUT_S)
    assert joined(site.device("alice", "a"), "a3").reason_codes == (EXCEEDED,)


def test_anonymous_clients_share_a_quota(site: Site) -> None:
    codes = joined(site.device(), *(f"n{number}" for number in range(MOST + 1))).reason_codes
    assert codes == (OK,) * MOST + (EXCEEDED,)
    assert joined(site.device(), "more").reason_codes == (EXCEEDED,)
    assert joined(site.device("bob", "b"), "b0").reason_codes == (OK,)


def test_a_group_that_nobody_uses_and_that_holds_nothing_goes(site: Site) -> None:
    stays, leaves = site.device("alice", "a", client_id="stays"), site.device("alice", "a", client_id="leaves")
    joined(stays, "offline")
    joined(leaves, "left", "held")
    stays.close()  # its session has the subscription
    leaves.close()
    assert joined(site.device("alice", "a"), "more").reason_codes == (EXCEEDED,)
    again = site.device("alice", "a", client_id="leaves", expiry_s=0)
    again.close()  # and with it the session ends
    wait_until(lambda: site.groups() == {"offline"}, TIMEOUT_S)
    assert joined(site.device("alice", "a"), "more", "and more").reason_codes == (OK, OK)


def test_group_that_the_sdk_uses_stays(site: Site) -> None:
    device = site.device("alice", "a", expiry_s=0)
    joined(device, "both", "mqtt")
    with Client(site.store.url.replace("tcp://", "penstock://")) as client, client.subscribe("t/#", group="both"):
        device.close()
    wait_until(lambda: site.groups() == {"both"}, TIMEOUT_S)
