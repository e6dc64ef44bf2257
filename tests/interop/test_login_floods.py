"""Floods of logins, and of connections that never become one: real servers, real sockets, many local addresses."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from scramp import ScramClient

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Auth, ConnAck, Connect, Disconnect, Publish, QoS, Will
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ServerFactory
from tests.support.mqtt_login_flood import Flood, answer, attempt
from tests.support.mqtt_packet_client import Device, until, write_passwords
from tests.support.server_process import PenstockServer

OK, WRONG = ReasonCode.SUCCESS, ReasonCode.BAD_USER_NAME_OR_PASSWORD
LIMITED = ReasonCode.CONNECTION_RATE_EXCEEDED
MANY = [f"127.0.{x}.{y}" for x in (1, 2) for y in range(1, 101)]
WITHIN_S = 10
"""On a busy machine; where all logins wait in one line it is minutes."""
NOW = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset
METHOD = "SCRAM-SHA-256"


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    return write_passwords(tmp_path / "passwords", {"alice": "right", "bob": "right"})


@pytest.mark.parametrize(
    ("sources", "user"),
    [
        (["127.0.0.9"], lambda number: f"stranger-{number}"),
        (["127.0.0.9"], lambda _: "alice"),
        (["127.0.0.1"], lambda _: "bob"),
        (MANY, lambda _: "alice"),
    ],
    ids=["one address", "one address, same user", "same address, another user", "200 addresses, same user"],
)
def test_a_right_login_comes_in_during_a_flood(
    penstock_server: ServerFactory, passwords: Path, sources: list[str], user: Callable[[int], str]
) -> None:
    server = penstock_server(settings={"auth.password_file": passwords})
    with Flood(server.port, sources, user) as flood:
        until(lambda: flood.sent >= 150)
        began_s = time.monotonic()
        with attempt(server.port, "alice", "right") as connection:
            assert answer(connection) == OK
        assert time.monotonic() - began_s < WITHIN_S


def test_a_flood_of_strangers_from_its_own_address_does_not_keep_a_user_waiting(
    penstock_server: ServerFactory, passwords: Path
) -> None:
    """They wait for their answers, so the line of this address is 10 s long and more."""
    server = penstock_server(settings={"auth.password_file": passwords})
    with Flood(server.port, ["127.0.0.1"], lambda number: f"stranger-{number}", 400, waits_s=60) as flood:
        until(lambda: flood.sent >= 1_000)
        began_s = time.monotonic()
        with attempt(server.port, "alice", "right") as connection:
            assert answer(connection) == OK
        assert time.monotonic() - began_s < 5


def test_a_token_and_a_password_come_in_during_a_flood_of_tokens(
    penstock_server: ServerFactory, passwords: Path, tmp_path: Path
) -> None:
    """Each takes some ms, with four keys that might have signed it. Who comes from elsewhere does not wait for them."""
    signers = [ec.generate_private_key(ec.SECP521R1()) for _ in range(4)]
    kind = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    keys = tmp_path / "keys.pem"
    keys.write_bytes(b"".join(signer.public_key().public_bytes(*kind) for signer in signers))
    server = penstock_server(settings={"auth.password_file": passwords, "auth.jwt_keys_file": keys})
    claims = {"sub": "carol", "exp": 1 << 32}
    forged = jwt.encode(claims, ec.generate_private_key(ec.SECP521R1()), "ES512")
    flood = [attempt(server.port, f"stranger-{number}", forged, "127.0.0.9") for number in range(600)]
    for user, password in (("carol", jwt.encode(claims, signers[-1], "ES512")), ("alice", "right")):
        with attempt(server.port, user, password) as connection:
            assert answer(connection) == OK
    unanswered = 0
    for each in flood:
        each.setblocking(False)
        try:
            assert answer(each) == WRONG
        except BlockingIOError:
            unanswered += 1
        each.close()
    assert unanswered > 200


@pytest.mark.parametrize("is_reset", [False, True], ids=["FIN", "RST"])
def test_logins_of_clients_that_left_are_not_verified(
    penstock_server: ServerFactory, passwords: Path, is_reset: bool
) -> None:
    server = penstock_server(settings={"auth.password_file": passwords})
    process = psutil.Process(server.process.pid)
    cpu_s = process.cpu_times().user
    for number in range(600):
        connection = attempt(server.port, f"stranger-{number}", "wrong")
        if is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NOW)
        connection.close()
    with attempt(server.port, "alice", "right") as connection:
        assert answer(connection) == OK
    assert process.cpu_times().user - cpu_s < 6  # 600 of them take 15


def test_messages_of_a_client_that_leaves_without_waiting_are_stored(
    penstock_server: ServerFactory, passwords: Path
) -> None:
    server = penstock_server(settings={"auth.password_file": passwords})
    reader = Device(server.port, "reader")
    assert reader.connect("bob", "right").reason_code is OK
    reader.subscribe("a")
    with attempt(server.port, "alice", "right", client_id="quick") as connection:
        connection.sendall(encode(Publish("a", b"measured"), 5) + encode(Disconnect(), 5))
    assert reader.next(Publish).payload == b"measured"


def test_wrong_logins_are_limited_and_remembered_passwords_are_not(
    penstock_server: ServerFactory, passwords: Path
) -> None:
    server = penstock_server(settings={"auth.password_file": passwords, "auth.max_failures": 3})

    def login(user: str, password: str, source: str = "127.0.0.1") -> int | None:
        with attempt(server.port, user, password, source) as connection:
            return answer(connection)

    assert login("bob", "right") == OK
    for user in ("bob", "alice"):
        assert [login(user, f"wrong-{number}") for number in range(5)] == [WRONG] * 3 + [LIMITED] * 2
    assert login("alice", "right") == LIMITED
    assert login("alice", "right", "127.0.0.2") == OK
    assert login("bob", "right") == OK


@pytest.mark.parametrize("listen", ["mqtt://127.0.0.1:0", "mqtt://127.0.0.1:0?proxy_protocol=2"])
def test_an_address_with_many_wrong_logins_is_banned_for_a_while(
    penstock_server: ServerFactory, passwords: Path, listen: str
) -> None:
    settings = {"auth.password_file": passwords, "auth.ban_failures": 5, "auth.ban_s": 3}
    is_proxied = "proxy" in listen
    server = penstock_server(settings={**settings, "auth.limit_loopback": "true", "gateway.listen": listen})
    port = int(server.urls[0].rpartition(":")[2].partition("?")[0])

    def login(source: str, password: str) -> int | None:
        made = socket.create_connection(("127.0.0.1", port), 20, ("127.0.0.1" if is_proxied else source, 0))
        with made:
            header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + socket.inet_aton(source) + bytes(8)
            connect = encode(Connect("", 5, username="alice", password=password.encode()), 5)
            made.sendall((header if is_proxied else b"") + connect)
            return answer(made)

    answers = [login("127.0.0.5", f"wrong-{number}") for number in range(6)]
    assert answers == [WRONG] * 4 + [ReasonCode.BANNED] * 2  # the fifth failure bans, and who is banned is told so
    assert login("127.0.0.5", "right") == ReasonCode.BANNED
    assert login("127.0.0.6", "right") == OK
    assert "127.0.0.5 is banned for 3 s" in server.log_text()
    until(lambda: login("127.0.0.5", "right") == OK)


# --- connections without a session, and packets that are not whole


def megabytes(server: PenstockServer) -> float:
    return float(psutil.Process(server.process.pid).memory_info().rss) / (1 << 20)


def test_memory_of_connections_without_a_connect_is_bounded(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.connecting_bytes": 4 << 20})
    before = megabytes(server)
    connect = encode(Connect("c", 5, will=Will("a", bytes(60_000))), 5)
    held = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(400)]
    for each in held:
        each.sendall(connect[:-1])
    assert Device(server.port, "d").connect().reason_code is OK
    assert megabytes(server) - before < 20
    assert "gateway.connecting_bytes is used up" in server.log_text()
    held[-1].sendall(connect[-1:])
    assert held[-1].recv(1) == b"\x20"
    for each in held:
        each.close()


@pytest.mark.parametrize("version", [4, 5])
def test_a_connect_that_is_too_large_is_refused_and_told(penstock_server: ServerFactory, version: int) -> None:
    server = penstock_server()
    fits = Device(server.port, "d", version)
    assert fits.connect(will=Will("a", bytes(60_000))).reason_code is OK
    large = Device(server.port, "e", version)
    expected = ReasonCode.PACKET_TOO_LARGE if version == 5 else ReasonCode.SERVER_UNAVAILABLE
    large.send_connect(will=Will("a", bytes(65_000)), username="x" * 60_000)
    assert large.next(ConnAck).reason_code is expected


def test_parts_of_large_packets_are_bounded_and_cost_no_more_in_small_pieces(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.incomplete_bytes": 8 << 20})
    before = megabytes(server)
    packet = encode(Publish("a", bytes(1_000_000), QoS.AT_LEAST_ONCE, packet_id=1), 5)
    slow = [Device(server.port, f"slow-{number}") for number in range(60)]
    for each in slow:
        assert each.connect().reason_code is OK
        each._socket.sendall(packet[:600_000])
    until(lambda: "gateway.incomplete_bytes is used up" in server.log_text())
    assert slow[0].closed_with() is ReasonCode.QUOTA_EXCEEDED
    assert megabytes(server) - before < 40
    last, process = slow[-1], psutil.Process(server.process.pid)
    cpu_s = process.cpu_times().user
    for at in range(600_000, 604_000):
        last._socket.sendall(packet[at : at + 1])
    last._socket.sendall(packet[604_000:])
    assert last.receive() is not None
    assert process.cpu_times().user - cpu_s < 2


# --- exchanges that stall


def exchange(data: str) -> dict[str, Any]:
    return {"authentication_method": METHOD, "authentication_data": data.encode()}


def challenged(device: Device) -> ScramClient:
    """In the midst of an exchange."""
    client = ScramClient([METHOD], "alice", "right")
    device.send_connect(**exchange(client.get_client_first()))
    client.set_server_first((device.next(Auth).properties.authentication_data or b"").decode())
    return client


def test_exchanges_that_stall_end_and_keep_nobody_out(penstock_server: ServerFactory, tmp_path: Path) -> None:
    file = write_passwords(tmp_path / "scram", {"alice": "right"}, scram=True)
    waits = {"auth.max_waiting": 3, "auth.reauthentication_timeout_s": 1, "gateway.connect_timeout_s": 2}
    server = penstock_server(settings={"auth.password_file": file, **waits})
    online = [Device(server.port, f"d{number}") for number in range(4)]
    for device in online:
        final = challenged(device).get_client_final()
        device.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(**exchange(final))))
        assert device.next(ConnAck).reason_code is OK
        first = ScramClient([METHOD], "alice", "right").get_client_first()
        device.send(Auth(ReasonCode.RE_AUTHENTICATE, Properties(**exchange(first))))
        device.next(Auth)
    assert Device(server.port, "e").connect("alice", "right").reason_code is OK
    assert [device.closed_with() for device in online] == [ReasonCode.NOT_AUTHORIZED] * 4
    stalled = [Device(server.port, f"s{number}") for number in range(3)]
    for device in stalled:
        challenged(device)
    assert Device(server.port, "e").connect("alice", "wrong").reason_code is ReasonCode.SERVER_BUSY
    assert {device.next(ConnAck).reason_code for device in stalled} == {ReasonCode.NOT_AUTHORIZED}
    assert Device(server.port, "e").connect("alice", "right").reason_code is OK
