"""gateway.max_connections_per_address: who is refused, and that whatever ends a connection makes room for another."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.frames import Frame, Opcode

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect
from gateway.transport.proxy_protocol import SIGNATURE
from tests.conftest import ServerFactory
from tests.interop.test_bad_input import metric
from tests.interop.test_websocket import HANDSHAKE
from tests.support.audit_lines import audit_lines
from tests.support.certificates import authority, vouched_for
from tests.support.mqtt_packet_client import until
from tests.support.server_process import PenstockServer

TIMEOUT_S = 20
MOST = 3
LIMIT = {"gateway.max_connections_per_address": MOST}
NOW = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset
UPGRADE = b"GET /mqtt HTTP/1.1\r\n" + HANDSHAKE

Ends = Callable[[socket.socket], object]


def opened(port: int, source: str = "127.0.0.1", data: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection((host, port), TIMEOUT_S, (source, 0))
    with suppress(ConnectionError):
        made.sendall(data)
    return made


def connect(client_id: str = "") -> bytes:
    return encode(Connect(client_id, 5), 5)


def is_let_in(client: socket.socket) -> bool:
    """By a CONNACK; others find their connection closed."""
    try:
        data = client.recv(1_024)
    except ConnectionError:
        return False
    return data[:1] == b"\x20" and data[3] == 0


def comes_in(port: int, source: str = "127.0.0.1", data: bytes = b"") -> bool:
    """Whether one more is let in, which then leaves."""
    with opened(port, source, data or connect()) as client:
        return is_let_in(client)


def room(port: int, source: str = "127.0.0.1") -> int:
    """How many are let in together, of more than may be."""
    clients = [opened(port, source, connect()) for _ in range(MOST + 2)]
    found = sum(map(is_let_in, clients))
    for each in clients:
        each.close()
    assert found <= MOST
    return found


def ports(server: PenstockServer) -> list[int]:
    return [int(url.rpartition(":")[2].partition("/")[0].partition("?")[0]) for url in server.urls]


def test_an_address_has_so_many_connections_and_others_have_theirs(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={**LIMIT, "admin": "127.0.0.1:0"})
    silent = opened(server.port)
    clients = [opened(server.port, data=connect()) for _ in range(MOST - 1)]
    assert all(map(is_let_in, clients))
    assert not any(comes_in(server.port) for _ in range(50))
    others = [opened(server.port, f"127.0.0.{number}", connect()) for number in range(2, 20)]
    assert all(map(is_let_in, others))
    said = "refused, max_connections_per_address are connected from its address"
    assert 0 < server.log_text().count(said) < 50
    assert metric(server, "penstock_connections_refused_total") == 50
    reason = "max_connections_per_address are connected from its address"
    until(lambda: sum(line["count"] for line in audit_lines(server, "refused", reason=reason)) == 50)
    silent.close()
    until(lambda: comes_in(server.port))
    for each in (*clients, *others):
        each.close()


def closes(client: socket.socket) -> None:
    client.close()


def resets(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NOW)
    client.close()


def sends(*parts: bytes) -> Ends:
    """Says something for which the server ends it, and waits for that."""

    def ends(client: socket.socket) -> None:
        with suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
            while client.recv(1_024):
                pass
        client.close()

    return ends


def waits(client: socket.socket) -> None:
    """For gateway.connect_timeout_s."""
    sends()(client)


def is_taken_over(client: socket.socket) -> None:
    with opened(client.getpeername()[1], "127.0.0.9", connect("same")) as other:
        assert is_let_in(other)
        sends()(client)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (connect(), closes),
        (connect(), resets),
        (b"", resets),
        (connect()[:5], closes),
        (connect(), sends(b"\xe0\0")),
        (connect(), sends(b"\xf6\xff\xff\xff\xff")),
        (b"", sends(b"\xc0\0")),
        (b"", sends(b"\x10\xff\xff\x7f", bytes(2_000))),
        (b"", waits),
        (connect("same"), is_taken_over),
        (encode(Connect("slow", 5, keep_alive_s=1), 5), waits),
    ],
    ids=[
        "close",
        "reset",
        "reset without a CONNECT",
        "close in a CONNECT",
        "DISCONNECT",
        "malformed",
        "no CONNECT",
        "a large CONNECT",
        "no CONNECT in time",
        "taken over",
        "keep alive",
    ],
)
def test_a_connection_that_ends_makes_room(penstock_server: ServerFactory, start: bytes, end: Ends) -> None:
    server = penstock_server(settings={**LIMIT, "gateway.connect_timeout_s": 1})
    last = opened(server.port, data=start)
    if start in (connect(), connect("same")):
        assert is_let_in(last)
    others = [opened(server.port, data=connect()) for _ in range(MOST - 1)]
    assert all(map(is_let_in, others))
    end(last)
    until(lambda: comes_in(server.port))
    for each in others:
        each.close()
    until(lambda: room(server.port) == MOST)


def proxied(host: str) -> bytes:
    kind, family = (0x21, socket.AF_INET6) if ":" in host else (0x11, socket.AF_INET)
    addresses = socket.inet_pton(family, host) * 2 + struct.pack("!HH", 40_000, 1_883)
    return SIGNATURE + struct.pack("!BBH", 0x21, kind, len(addresses)) + addresses


@pytest.mark.parametrize(
    ("same", "another"),
    [
        (["192.0.2.1"] * 4, "192.0.2.2"),
        ([f"2001:db8:0:1::{number}" for number in range(4)], "2001:db8:0:2::1"),
        ([f"::ffff:192.0.2.{9}"] * 4, "192.0.2.8"),
    ],
    ids=["IPv4", "IPv6 of one /64", "IPv4 in IPv6"],
)
def test_behind_a_proxy_the_address_that_it_tells_counts(
    penstock_server: ServerFactory, same: list[str], another: str
) -> None:
    server = penstock_server(settings={**LIMIT, "gateway.listen": "mqtt://127.0.0.1:0?proxy_protocol=2"})
    (port,) = ports(server)
    clients = [opened(port, data=proxied(host) + connect()) for host in same]
    assert [is_let_in(client) for client in clients] == [True] * MOST + [False]
    assert comes_in(port, data=proxied(another) + connect())
    resets(clients[0])
    until(lambda: comes_in(port, data=proxied(same[-1]) + connect()))
    assert all(comes_in(port, data=proxied(f"198.51.100.{number}") + connect()) for number in range(20))
    for each in clients:
        each.close()


def test_tls_and_websocket_connections_count_from_when_they_are_opened(
    penstock_server: ServerFactory, tmp_path: Path
) -> None:
    ca = authority(tmp_path, "authority")
    made = vouched_for(tmp_path, "server", "DNS:localhost", ca)
    server = penstock_server(
        settings={
            **LIMIT,
            "admin": "127.0.0.1:0",
            "gateway.listen": "mqtt://127.0.0.1:0,mqtts://127.0.0.1:0,ws://127.0.0.1:0,wss://127.0.0.1:0",
            "gateway.tls_certificate": made.certificate,
            "gateway.tls_key": made.key,
        }
    )
    plain, tls, ws, wss = ports(server)
    context = ssl.create_default_context(cafile=ca.certificate)

    def secured(port: int) -> socket.socket:
        return context.wrap_socket(opened(port), server_hostname="localhost")

    starts: list[Callable[[], socket.socket]] = [
        lambda: opened(tls),
        lambda: opened(tls, data=b"\x16\x03\1\2\0\1"),
        lambda: opened(tls, data=b"no TLS at all"),
        lambda: secured(tls),
        lambda: opened(ws, data=b"GET /mqtt"),
        lambda: opened(ws, data=UPGRADE + Frame(Opcode.BINARY, connect()).serialize(mask=True)),
        lambda: opened(ws, data=UPGRADE + Frame(Opcode.TEXT, b"text").serialize(mask=True)),
        lambda: secured(wss),
    ]
    for start in starts:
        for end in (closes, resets):
            others = [opened(plain, data=connect()) for _ in range(MOST - 1)]
            assert all(map(is_let_in, others))
            end(start())
            until(lambda: comes_in(plain))
            for each in others:
                each.close()
            until(lambda: room(plain) == MOST)
            until(lambda: metric(server, "penstock_connections") == 0)
