"""MQTT over WebSocket: the opening handshake, frames as clients cut them, and the end."""

import os
import socket
import struct
import time
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect
from websockets.sync.connection import Connection
from websockets.typing import Origin, Subprotocol

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect
from tests.conftest import ONE_PROCESS_BY_DAY, ServerFactory, SharedServers
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_listeners import wait_for_log
from tests.support.server_process import PenstockServer

pytestmark = ONE_PROCESS_BY_DAY

CONNECT = encode(Connect("device", 4), 4)
CONNACK = b"\x20\2\0\0"
SUBSCRIBE, SUBACK = b"\x82\x06\0\1\0\1t\0", b"\x90\3\0\1\0"
PING, PONG = b"\xc0\0", b"\xd0\0"
HANDSHAKE = (
    b"Host: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
MANY_PINGS_BYTES = 64 << 20
SETTINGS = {"gateway.listen": "ws://127.0.0.1:0"}


@pytest.fixture
def server(shared_server: SharedServers) -> PenstockServer:
    return shared_server(settings=SETTINGS)


def opened(server: PenstockServer, url: str = "", protocols: tuple[str, ...] = ("mqtt",)) -> ClientConnection:
    wanted = [Subprotocol(each) for each in protocols] or None
    return connect(url or server.urls[0], subprotocols=wanted, compression=None, proxy=None, open_timeout=TIMEOUT_S)


def received(client: Connection, size: int) -> bytes:
    data = b""
    while len(data) < size:
        frame = client.recv(TIMEOUT_S)
        assert isinstance(frame, bytes)
        data += frame
    return data


def port_of(server: PenstockServer) -> int:
    return int(server.urls[0].rpartition(":")[2].partition("/")[0])


def asked(server: PenstockServer, request: bytes) -> bytes:
    """All that is answered to it."""
    with socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S) as client:
        client.sendall(request)
        answer = b""
        with suppress(ConnectionResetError):  # where not all of it was read
            while data := client.recv(4096):
                answer += data
        return answer


@pytest.mark.catalogue("G26")
@pytest.mark.mqtt("MQTT-6.0.0-2")
def test_packets_and_frames_need_not_match(server: PenstockServer) -> None:
    with opened(server) as client:
        assert client.subprotocol == "mqtt"
        client.send([CONNECT[:3], b"", CONNECT[3:7], CONNECT[7:] + SUBSCRIBE[:2]])  # a message of fragments
        client.send(SUBSCRIBE[2:] + PING + PING[:1])
        client.send(PING[1:])
        answers = CONNACK + SUBACK + PONG * 2
        found = received(client, len(answers))
        assert sorted(found) == sorted(answers)
        assert found.startswith(CONNACK)
        for size in (0, 100, 70_000, 600_000):
            payload = os.urandom(size)
            length, rest = b"", 3 + size
            while rest > 127:
                length, rest = length + bytes((rest & 127 | 128,)), rest >> 7
            packet = b"\x30" + length + bytes((rest,)) + b"\0\1t" + payload
            client.send(packet[: len(packet) // 2])
            client.send(packet[len(packet) // 2 :])
            assert received(client, len(packet)) == packet


def test_pings_of_both_kinds(server: PenstockServer) -> None:
    with opened(server) as client:
        client.send(CONNECT)
        assert received(client, 4) == CONNACK
        assert client.ping(b"are you there?").wait(TIMEOUT_S)
        client.send(PING)
        assert received(client, 2) == PONG


@pytest.mark.mqtt("MQTT-6.0.0-4")
@pytest.mark.parametrize("protocols", [("mqtt", "other"), ("other", "mqtt"), ("mqttv3.1", "mqtt")])
def test_the_sub_protocol_is_among_others(server: PenstockServer, protocols: tuple[str, ...]) -> None:
    with opened(server, protocols=protocols) as client:
        assert client.subprotocol == "mqtt"


def test_invalid_websocket_handshakes_are_refused(server: PenstockServer) -> None:
    url = server.urls[0]
    for path, protocols, status in (
        (url.removesuffix("/mqtt") + "/x", ("mqtt",), 404),
        (url + "/more", ("mqtt",), 404),
        (url, (), 400),
        (url, ("other",), 400),
    ):
        with pytest.raises(InvalidStatus) as refused:
            opened(server, path, protocols)
        assert refused.value.response.status_code == status
        assert refused.value.response.body
    with opened(server, url + "?user=1"):
        pass
    assert asked(server, b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert asked(server, b"GET /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 404 ")
    assert asked(server, CONNECT + b"\r\n").startswith(b"HTTP/1.1 400 ")
    assert asked(server, b"GET /mqtt HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 4")
    wait_for_log(server, "WebSocket handshake refused: 404 Not Found")


@pytest.mark.parametrize("path", ["/mqtt", "/", "/ws"])
def test_the_paths_that_clients_ask_for(server: PenstockServer, path: str) -> None:
    with opened(server, server.urls[0].removesuffix("/mqtt") + path) as client:
        client.send(CONNECT)
        assert received(client, 4) == CONNACK


def test_junk_behind_a_request_that_is_refused(server: PenstockServer) -> None:
    junk = b"\x00\xff" * 1_000
    answer = asked(server, b"GET /x HTTP/1.1\r\n" + HANDSHAKE + junk)
    assert not answer or answer.startswith(b"HTTP/1.1 404 ")  # a reset takes back what was not read
    wait_for_log(server, "WebSocket handshake refused: 404 Not Found")
    assert "Traceback" not in server.log_text()


def test_a_bad_frame_right_behind_the_request(server: PenstockServer) -> None:
    """It is answered at once, and not when gateway.connect_timeout_s is over."""
    began_s = time.monotonic()
    answer = asked(server, b"GET /ws HTTP/1.1\r\n" + HANDSHAKE + b"\xff\xff\xff\xff")
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"\x03\xea" in answer.partition(b"\r\n\r\n")[2]  # 1002
    assert time.monotonic() - began_s < 9


def test_former_sub_protocols_where_a_setting_allows(penstock_server: ServerFactory) -> None:
    settings = {"gateway.listen": "ws://127.0.0.1:0", "gateway.websocket_any_subprotocol": True}
    server = penstock_server(settings=settings)
    offers = {("mqttv3.1",): "mqttv3.1", ("other", "mqttv3.1", "mqtt"): "mqtt", (): None, ("other",): None}
    for offered, selected in offers.items():
        with opened(server, protocols=offered) as client:
            assert client.subprotocol == selected
            client.send(CONNECT)
            assert received(client, 4) == CONNACK


def test_pages_of_other_sites(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings=SETTINGS | {"gateway.websocket_origins": "https://shop.example"})
    mqtt = [Subprotocol("mqtt")]
    for origin in (None, Origin("https://shop.example")):
        with connect(server.urls[0], subprotocols=mqtt, origin=origin, proxy=None) as client:
            client.send(CONNECT)
            assert received(client, 4) == CONNACK
    with pytest.raises(InvalidStatus) as refused:
        connect(server.urls[0], subprotocols=mqtt, origin=Origin("https://evil.example"), proxy=None)
    assert refused.value.response.status_code == 403


@pytest.mark.mqtt("MQTT-6.0.0-1")
def test_websocket_frames_that_end_a_connection(penstock_server: ServerFactory) -> None:
    """A server of its own: in a second with more than ten lines about bad input some are left out of its log."""
    server = penstock_server(settings=SETTINGS)

    def ends(code: int, *messages: bytes | str) -> None:
        with opened(server) as client:
            client.send(CONNECT)
            assert received(client, 4) == CONNACK
            with suppress(ConnectionClosed):
                for message in messages:
                    client.send(message)
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(TIMEOUT_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == code

    with opened(server) as witness:
        witness.send(encode(Connect("witness", 4), 4))
        assert received(witness, 4) == CONNACK
        ends(1003, "text")
        ends(1009, bytes(1_200_000))
        ends(1000, b"\xe0\0")  # MQTT's DISCONNECT
        ends(1000, b"\xf0" + b"\xff" * 4)  # malformed MQTT
        witness.send(PING)
        assert received(witness, 2) == PONG
    wait_for_log(server, "a WebSocket text frame [MQTT-6.0.0-1]")
    wait_for_log(server, "WebSocket: ")


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("!BB", 0x82, 2) + PING,  # not masked
        struct.pack("!BB4x", 0x83, 0x82) + PING,  # no such kind
        struct.pack("!BB4x", 0xC2, 0x82) + PING,  # compressed, of which nobody spoke
        struct.pack("!BBQ4x", 0x82, 0xFF, 1 << 62),  # larger than anything
        struct.pack("!BB4x", 0x80, 0x82) + PING,  # the rest of nothing
    ],
)
def test_frames_that_are_none(server: PenstockServer, frame: bytes) -> None:
    with opened(server) as client:
        client.send(CONNECT)
        assert received(client, 4) == CONNACK
        client.socket.sendall(frame)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(TIMEOUT_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code in (1002, 1009)


def test_frames_ahead_of_the_answer_are_of_no_use_at_a_wrong_place(server: PenstockServer) -> None:
    frame = Frame(Opcode.BINARY, CONNECT).serialize(mask=True)
    answer = asked(server, b"GET /other HTTP/1.1\r\n" + HANDSHAKE + frame)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert CONNACK not in answer


UPGRADE = b"GET /mqtt HTTP/1.1\r\n" + HANDSHAKE
FRAGMENTS = [Frame(Opcode.CONT if number else Opcode.BINARY, b"", False).serialize(mask=True) for number in range(300)]
HEADER = b"X-Long: " + b"x" * 1_000 + b"\r\n"


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"GET /mqtt HTTP/1.1\r\n" + HEADER * 20, b"HTTP/1.1 431 "),
        (b"GET /" + b"x" * 17_000, b"HTTP/1.1 4"),
        (UPGRADE + Frame(Opcode.PING, b"").serialize(mask=True) * 300, b"HTTP/1.1 101 "),
        (UPGRADE + Frame(Opcode.BINARY, b"").serialize(mask=True) * 300, b"HTTP/1.1 101 "),
        (UPGRADE + b"".join(FRAGMENTS), b"HTTP/1.1 101 "),
        (UPGRADE + Frame(Opcode.BINARY, bytes(200_000)).serialize(mask=True)[:150_000], b"HTTP/1.1 101 "),
    ],
    ids=["headers", "a path", "pings", "empty frames", "fragments", "a large frame"],
)
def test_websocket_input_before_a_connect_is_bounded(server: PenstockServer, start: bytes, said: bytes) -> None:
    """The end comes without the client's doing, and long before gateway.connect_timeout_s."""
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S) as client:
        client.sendall(start)
        answer = b""
        with suppress(ConnectionResetError):
            while data := client.recv(65_536):
                answer += data
        assert time.monotonic() - began_s < 9
        assert CONNACK not in answer
        assert said in answer or not answer  # a reset takes back what was not read
    with opened(server) as other:
        other.send(CONNECT)
        assert received(other, 4) == CONNACK


def test_a_connect_in_frames_of_a_byte_and_packets_ahead_of_the_connack(server: PenstockServer) -> None:
    with opened(server) as client:
        client.send([CONNECT[at : at + 1] for at in range(len(CONNECT))])
        assert received(client, 4) == CONNACK
    many = Frame(Opcode.BINARY, PING).serialize(mask=True) * 1_000
    with socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S) as plain:
        plain.sendall(UPGRADE + Frame(Opcode.BINARY, CONNECT).serialize(mask=True) + many)
        answer = b""
        while answer.count(PONG) < 1_000:
            data = plain.recv(65_536)
            assert data
            answer += data


def test_incomplete_handshakes_and_frames_count_as_incomplete_bytes(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={**SETTINGS, "gateway.connecting_bytes": 1 << 20}).one_gateway()
    frame = Frame(Opcode.BINARY, bytes(100_000)).serialize(mask=True)[:90_000]
    slow = [socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S) for _ in range(20)]
    for each in slow:
        each.sendall(UPGRADE + frame)
    wait_for_log(server, "gateway.connecting_bytes is used up")
    asking = [socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S) for _ in range(100)]
    for each in asking:
        each.sendall(b"GET /mqtt HTTP/1.1\r\n" + HEADER * 15)
    with suppress(ConnectionResetError):
        while slow[-1].recv(65_536):  # the last of them to be closed
            pass
    with opened(server) as client:
        client.send(CONNECT)
        assert received(client, 4) == CONNACK
    for each in slow + asking:
        each.close()


def test_client_that_reads_no_pongs_is_not_read_from(server: PenstockServer) -> None:
    """Pings cost memory only until the buffers are full."""
    with opened(server) as client:
        client.send(CONNECT)
        assert received(client, 4) == CONNACK
    with socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S) as rude:
        rude.sendall(b"GET /mqtt HTTP/1.1\r\n" + HANDSHAKE)
        rude.sendall(Frame(Opcode.BINARY, CONNECT).serialize(mask=True))
        ping = Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 1_000
        rude.settimeout(2)  # for as long nothing at all is taken
        sent = 0
        with suppress(TimeoutError):
            while sent < MANY_PINGS_BYTES:
                sent += rude.send(ping)
        assert sent < MANY_PINGS_BYTES
    with opened(server) as client:
        client.send(CONNECT)
        assert received(client, 4) == CONNACK


def test_the_server_says_goodbye(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings=SETTINGS)
    with opened(server) as client:
        client.send(encode(Connect("device", 5), 5))
        assert received(client, 5)[0] == 0x20
        server.terminate()
        assert received(client, 2)[:1] == b"\xe0"
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(TIMEOUT_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
