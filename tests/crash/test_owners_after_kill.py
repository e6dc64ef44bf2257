"""Whose a session is, where the store or a gateway is killed between its opening and another user's attempts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.packets import ConnAck, PingReq, PingResp, Publish
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.part import Part
from tests.support.mqtt_packet_client import Device, until, write_passwords

USERS = {"a": "1", "b": "2"}
A, B = USERS.items()


@pytest.fixture
def cluster(tmp_path: Path, small: dict[str, object]) -> Iterator[Cluster]:
    passwords = write_passwords(tmp_path / "passwords", USERS)
    cluster = Cluster(tmp_path, settings=small | {"auth.password_file": passwords, "wire.lease_ms": 3_000}, wires=False)
    yield cluster
    cluster.close()


def connect(
    cluster: Cluster, gateway: int, client_id: str, who: tuple[str, str], durable: bool
) -> tuple[Device, ConnAck]:
    device = Device(cluster.ports[gateway], client_id)
    fields: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 1_000} if durable else {}
    return device, device.connect(*who, **fields)


@pytest.mark.parametrize("kills", ["store", "gateway", "both"])
def test_a_durable_session_stays_its_owners(cluster: Cluster, kills: str) -> None:
    owner, _ = connect(cluster, 0, "d", A, durable=True)
    assert owner.subscribe("t", 1) == 1
    parts: list[Part] = [cluster.store] if kills != "gateway" else []
    parts += [cluster.gateways[0]] if kills != "store" else []
    for part in parts:
        part.kill()
    for part in parts:
        part.start()
    for gateway in (0, 1):
        assert connect(cluster, gateway, "d", B, durable=True)[1].reason_code is ReasonCode.NOT_AUTHORIZED
    again, answer = connect(cluster, 1, "d", A, durable=True)
    assert answer.session_present
    again.publish("t", b"1")
    assert again.next(Publish).payload == b"1"


def test_a_clean_session_outlasts_a_store_that_is_killed(cluster: Cluster) -> None:
    """No record knows it: another user may be let in before its gateway has said so, and has to go then."""
    owner, _ = connect(cluster, 0, "d", A, durable=False)
    other, _ = connect(cluster, 0, "p", A, durable=False)
    assert other.published("t") is ReasonCode.SUCCESS  # the store knows the gateway
    cluster.store.kill()
    cluster.store.start()
    thief, _ = connect(cluster, 1, "d", B, durable=True)
    assert other.published("t") is ReasonCode.SUCCESS  # its gateway is back at it
    while thief.receive() is not None:
        pass
    until(lambda: connect(cluster, 1, "d", B, durable=True)[1].reason_code is ReasonCode.NOT_AUTHORIZED)
    owner.send(PingReq())
    assert owner.next(PingResp) == PingResp()
    owner.close()
    until(lambda: connect(cluster, 1, "d", A, durable=False)[1].reason_code is ReasonCode.SUCCESS)
