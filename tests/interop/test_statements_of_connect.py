"""Statements of the standard about CONNECT, shown to a real server in bytes; see docs/conformance.md."""

import pytest

from tests.conftest import ONE_PROCESS_BY_DAY, SharedServers
from tests.support.mqtt_byte_client import ByteClient, block, connect, connected, packet, publish, subscribe, text
from tests.support.server_process import PenstockServer

pytestmark = ONE_PROCESS_BY_DAY

MALFORMED = b"\0\x81\0"
WILL = block() + text(b"will/topic") + text(b"gone")
NOT_UTF8 = b"\xc3\x28"


@pytest.fixture
def server(shared_server: SharedServers) -> PenstockServer:
    return shared_server(flush="async")


def refused(port: int, data: bytes) -> list[tuple[int, bytes]]:
    client = ByteClient(port)
    client.send(data)
    return client.until_closed()


@pytest.mark.mqtt(
    "MQTT-3.1.2-9", "MQTT-3.1.2-17", "MQTT-3.1.2-19", "MQTT-3.1.3-1", "MQTT-3.1.3-3", "MQTT-3.2.2-1", "MQTT-3.1.4-5"
)
def test_all_fields_in_their_order_are_accepted(server: PenstockServer) -> None:
    client = ByteClient(server.port)
    client.send(connect(b"whole", flags=0xC6, payload=WILL + text(b"user") + text(b"password")))
    first_byte, body = client.take()
    assert first_byte == 0x20
    assert body[:2] == b"\0\0"


@pytest.mark.mqtt(
    "MQTT-3.1.2-9", "MQTT-3.1.2-16", "MQTT-3.1.2-17", "MQTT-3.1.2-18", "MQTT-3.1.2-19", "MQTT-3.1.3-1", "MQTT-3.1.4-1"
)
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (0x06, b""),  # a will is announced, and missing
        (0x06, block() + text(b"will/topic")),
        (0x82, b""),  # a user name
        (0x42, b""),  # a password
        (0xC2, text(b"user")),
        (0x02, text(b"user")),  # there, and not announced
        (0x02, WILL),
        (0x82, text(b"user") + text(b"password")),
    ],
)
def test_fields_that_the_flags_do_not_announce(server: PenstockServer, flags: int, payload: bytes) -> None:
    assert refused(server.port, connect(b"c", flags=flags, payload=payload)) == [(0x20, MALFORMED)]


@pytest.mark.mqtt("MQTT-3.1.2-11", "MQTT-3.1.2-12", "MQTT-3.1.2-13", "MQTT-3.1.2-3", "MQTT-3.2.2-7")
@pytest.mark.parametrize("flags", [0x0A, 0x12, 0x22, 0x1E, 0x03])
def test_flags_that_do_not_go_together(server: PenstockServer, flags: int) -> None:
    payload = WILL if flags & 4 else b""
    assert refused(server.port, connect(b"c", flags=flags, payload=payload)) == [(0x20, MALFORMED)]


@pytest.mark.mqtt("3.1.1 MQTT-3.1.2-22", "3.1.1 MQTT-3.2.2-6")
def test_a_password_without_a_user_name_in_mqtt_3(server: PenstockServer) -> None:
    assert refused(server.port, connect(b"c", 4, flags=0x42, payload=text(b"password"))) == []


@pytest.mark.mqtt("MQTT-3.1.3-4", "MQTT-3.1.3-11", "MQTT-3.1.3-12", "MQTT-1.5.4-1")
@pytest.mark.parametrize(
    "data",
    [
        connect(NOT_UTF8),
        connect(b"c", flags=0x06, payload=block() + text(NOT_UTF8) + text(b"")),
        connect(b"c", flags=0x82, payload=text(NOT_UTF8)),
        connect(b"c\0d"),
        connect(b"\xed\xa0\x80"),
    ],
    ids=["client_id", "will topic", "user name", "U+0000", "surrogate"],
)
def test_strings_that_are_not_utf8(server: PenstockServer, data: bytes) -> None:
    assert refused(server.port, data) == [(0x20, MALFORMED)]


@pytest.mark.mqtt("MQTT-3.1.3-5", "MQTT-3.1.3-2")
@pytest.mark.parametrize(
    "client_id", [b"0", b"abcdefghijklmnopqrstuvw", b"ABCDEFGHIJKLMNOPQRSTUVW", b"123456789xyzXYZ"]
)
@pytest.mark.parametrize("version", [4, 5])
def test_client_identifiers(server: PenstockServer, client_id: bytes, version: int) -> None:
    connected(server.port, client_id, version).close()


@pytest.mark.mqtt("MQTT-3.1.4-6", "3.1.1 MQTT-3.1.4-5")
@pytest.mark.parametrize("version", [4, 5])
def test_packets_after_a_rejected_connect_are_not_processed(server: PenstockServer, version: int) -> None:
    witness = connected(server.port)
    witness.send(subscribe(b"behind"))
    assert witness.take()[0] == 0x90
    properties = None if version == 4 else b""
    client = ByteClient(server.port)
    client.send(connect(b"c", version, flags=3), publish(b"behind", b"1", properties=properties))
    client.until_closed()
    assert witness.until_pong() == []


@pytest.mark.mqtt("MQTT-3.1.2-28")
@pytest.mark.parametrize("properties", [b"", b"\x19\0"])
def test_no_response_information_unless_it_is_asked_for(server: PenstockServer, properties: bytes) -> None:
    client = ByteClient(server.port)
    client.send(connect(b"", properties=properties))
    assert 0x1A not in identifiers(client.take()[1][2:])


def identifiers(properties: bytes) -> set[int]:
    """Of those that CONNACK may have."""
    sizes = {0x11: 4, 0x13: 2, 0x21: 2, 0x22: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}
    found, at = set(), 1
    assert properties[0] == len(properties) - 1
    while at < len(properties):
        found.add(properties[at])
        size = sizes.get(properties[at])
        at += 1 + (2 + int.from_bytes(properties[at + 1 : at + 3], "big") if size is None else size)
    return found


@pytest.mark.mqtt("MQTT-3.1.2-24", "MQTT-4.13.2-1")
def test_a_connack_too_large_for_the_client_is_not_sent(server: PenstockServer) -> None:
    """Its properties cannot be left out, so the client is refused; with what it can take."""
    assert refused(server.port, connect(b"", properties=b"\x27\0\0\0\x05")) == [(0x20, b"\0\x95\0")]
    assert refused(server.port, connect(b"", properties=b"\x27\0\0\0\x04")) == []


@pytest.mark.mqtt("MQTT-3.2.2-19", "MQTT-3.2.2-20", "MQTT-3.2.2-7")
def test_a_refusal_says_why_if_the_client_can_take_it(server: PenstockServer) -> None:
    will = block() + text(b"$SYS/x") + text(b"gone")
    ((first_byte, body),) = refused(server.port, connect(b"c", flags=6, payload=will))
    assert (first_byte, body[:2], body[3]) == (0x20, b"\0\x87", 0x1F)
    assert b"will topic" in body
    small = connect(b"c", flags=6, properties=b"\x27\0\0\0\x10", payload=will)
    assert refused(server.port, small) == [(0x20, b"\0\x87\0")]
    assert refused(server.port, connect(b"c", 4, flags=6, payload=will[1:])) == [(0x20, b"\0\5")]


@pytest.mark.mqtt("MQTT-4.2-1")
def test_a_stream_may_be_cut_anywhere(server: PenstockServer) -> None:
    client = ByteClient(server.port)
    for byte in connect(b"") + subscribe(b"cut", 1) + publish(b"cut", b"payload", qos=1, packet_id=9):
        client.send(bytes((byte,)))
    kinds = [client.take()[0] for _ in range(4)]
    assert sorted(kinds) == [0x20, 0x32, 0x40, 0x90]


@pytest.mark.mqtt("MQTT-3.14.2-2", "MQTT-3.14.2-1", "MQTT-3.14.4-1", "MQTT-3.14.4-2")
def test_disconnect_of_the_server(server: PenstockServer) -> None:
    """Session taken over: a reason code, and nothing of a session expiry interval."""
    first = connected(server.port, b"taken", properties=b"\x11\0\0\0\x64")
    second = connected(server.port, b"taken", properties=b"\x11\0\0\0\x64")
    ((first_byte, body),) = first.until_closed()
    assert (first_byte, body[0]) == (0xE0, 0x8E)
    assert body[1:] == b"" or body[2] != 0x11
    assert second.until_pong() == []


@pytest.mark.mqtt("MQTT-3.14.1-1", "MQTT-3.15.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1", "MQTT-3.6.1-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "data",
    [
        b"\xe1\0",
        packet(0xF1, b"\x18", block(b"\x15\0\1m")),
        packet(0x80, b"\0\1\0", text(b"a"), b"\0"),
        packet(0xA0, b"\0\1\0", text(b"a")),
        b"\x60\2\0\1",
    ],
    ids=["DISCONNECT", "AUTH", "SUBSCRIBE", "UNSUBSCRIBE", "PUBREL"],
)
def test_reserved_flags(server: PenstockServer, data: bytes) -> None:
    client = connected(server.port)
    client.send(data)
    ((first_byte, body),) = client.until_closed()
    assert (first_byte, body[0]) == (0xE0, 0x81)
