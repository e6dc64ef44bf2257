"""A session belongs to the user who opened it, with real servers and sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.packets import ConnAck, PingReq, PingResp, PubAck, Publish, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import IN_ALL_TOPOLOGIES, ServerFactory, SharedServers
from tests.support.mqtt_packet_client import Device, until, write_passwords
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

RULES = """
[[rule]]
allow = ["publish", "subscribe"]
topics = ["%u/#"]

[[rule]]
users = ["root"]
allow = ["publish", "subscribe"]
topics = ["#"]

[[rule]]
allow = ["publish", "subscribe"]
topics = ["open/#"]
"""
USERS = {"a": "1", "b": "2", "root": "3"}
A, B, ROOT = USERS.items()
NOBODY = (None, None)
DURABLE = {"clean_start": False, "session_expiry_interval": 1_000}
VERSIONS = pytest.mark.parametrize("version", [4, 5])


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("files")
    (folder / "rules.toml").write_text(RULES)
    passwords = write_passwords(folder / "passwords", USERS)
    return {
        "auth.password_file": passwords,
        "auth.permissions_file": folder / "rules.toml",
        "auth.allow_anonymous": True,
    }


@pytest.fixture
def server(shared_server: SharedServers, settings: dict[str, object]) -> PenstockServer:
    return shared_server(settings=settings)


def connect(
    server: PenstockServer, client_id: str, who: tuple[str | None, str | None], version: int = 5, **fields: Any
) -> tuple[Device, ConnAck]:
    """At another gateway than the last time, where there are several."""
    device = Device(server.port, client_id, version)
    if version == 4:
        fields.pop("session_expiry_interval", None)
    return device, device.connect(*who, **fields)


def refused(server: PenstockServer, client_id: str, version: int = 5, **fields: Any) -> None:
    """To everybody but user a, at all gateways."""
    for who in (B, NOBODY, ROOT):
        for _ in range(2):
            device, answer = connect(server, client_id, who, version, **fields)
            assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
            assert device.receive() is None


@VERSIONS
@pytest.mark.catalogue("G27")
def test_a_durable_session(server: PenstockServer, version: int) -> None:
    """Not what waits, nor what it subscribes to, nor its will is another's to have or to end."""
    client_id = f"durable-{version}"
    listener, _ = connect(server, f"l{version}", ROOT)
    assert listener.subscribe("open/will") == 0
    owner, _ = connect(server, client_id, A, version, will=Will("open/will", b"gone"), **DURABLE)
    assert owner.subscribe("a/#", 1) == 1
    refused(server, client_id, version, **DURABLE)
    refused(server, client_id, version, clean_start=True, will=Will("open/will", b"stolen"))
    owner.send(PingReq())
    assert owner.next(PingResp) == PingResp()
    owner.close()
    assert listener.next(Publish).payload == b"gone"
    publisher, _ = connect(server, f"p{version}", ROOT)
    assert publisher.published("a/1", b"secret") is ReasonCode.SUCCESS
    refused(server, client_id, version, **DURABLE)
    refused(server, client_id, version, clean_start=True)
    owner, answer = connect(server, client_id, A, version, **DURABLE)
    assert answer.session_present
    message = owner.next(Publish)
    assert message.payload == b"secret"
    owner.send(PubAck(message.packet_id or 0))
    assert publisher.published("open/will", b"end") is ReasonCode.SUCCESS
    assert listener.next(Publish).payload == b"end", "no other will was sent"


@VERSIONS
def test_a_clean_session_while_it_is_connected(server: PenstockServer, version: int) -> None:
    client_id = f"clean-{version}"
    owner, _ = connect(server, client_id, A, version)
    refused(server, client_id, version, clean_start=True)
    owner.send(PingReq())
    assert owner.next(PingResp) == PingResp()
    newer, answer = connect(server, client_id, A, version)
    assert answer.reason_code is ReasonCode.SUCCESS
    while owner.receive() is not None:
        pass
    newer.close()
    until(lambda: connect(server, client_id, B, version)[1].reason_code is ReasonCode.SUCCESS)


def test_an_anonymous_clients_session_is_its_own(server: PenstockServer) -> None:
    first, _ = connect(server, "anonymous", NOBODY, **DURABLE)
    assert first.subscribe("open/#", 1) == 1
    assert connect(server, "anonymous", ROOT, **DURABLE)[1].reason_code is ReasonCode.NOT_AUTHORIZED
    first.close()
    assert connect(server, "anonymous", ROOT, clean_start=True)[1].reason_code is ReasonCode.NOT_AUTHORIZED
    assert connect(server, "anonymous", NOBODY, **DURABLE)[1].session_present


def test_refused_session_is_logged(server: PenstockServer) -> None:
    """Of many such lines there are a few a second."""
    _owner, _ = connect(server, "told", A)

    def is_told() -> bool:
        assert connect(server, "told", B)[1].reason_code is ReasonCode.NOT_AUTHORIZED
        return "session of client told is not for user b" in server.log_text()

    until(is_told)


def test_authentication_that_is_turned_on_later(penstock_server: ServerFactory, settings: dict[str, object]) -> None:
    """What was there then is for the first user who may read all of it."""
    server = penstock_server(settings={"auth.allow_anonymous": True})
    for client_id, topic_filter in (("one", "a/#"), ("two", "c/#")):
        device, _ = connect(server, client_id, NOBODY, **DURABLE)
        assert device.subscribe(topic_filter, 1) == 1
        device.close()
    publisher, _ = connect(server, "publisher", NOBODY)
    assert publisher.published("a/1", b"kept") is ReasonCode.SUCCESS
    server.restart({**settings, "auth.allow_anonymous": False})
    for who in (B, A):
        assert connect(server, "two", who, **DURABLE)[1].reason_code is ReasonCode.NOT_AUTHORIZED
    assert connect(server, "one", B, **DURABLE)[1].reason_code is ReasonCode.NOT_AUTHORIZED
    device, answer = connect(server, "one", A, **DURABLE)
    assert answer.session_present
    assert device.next(Publish).payload == b"kept"
    assert connect(server, "one", ROOT, **DURABLE)[1].reason_code is ReasonCode.NOT_AUTHORIZED


def test_the_owner_is_known_after_a_restart(
    penstock_server: ServerFactory, settings: dict[str, object], tmp_path: Path
) -> None:
    server = penstock_server(settings=settings, flush="sync")
    owner, _ = connect(server, "d", A, **DURABLE)
    assert owner.subscribe("a/#", 1) == 1
    server.restart()
    refused(server, "d", **DURABLE)
    assert connect(server, "d", A, **DURABLE)[1].session_present
