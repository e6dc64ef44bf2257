"""Statements of the standard about messages, shown to a real server in bytes; see docs/conformance.md."""

import pytest

from tests.conftest import IN_ALL_TOPOLOGIES, SharedServers
from tests.support.mqtt_byte_client import ByteClient, block, connected, packet, publish, subscribe, text
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

NOT_UTF8 = b"\xc3\x28"
PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK = 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0


@pytest.fixture
def server(shared_server: SharedServers) -> PenstockServer:
    return shared_server(settings={"gateway.max_subscriptions_per_session": 2}, flush="async")


def subscribed(port: int, topic_filter: bytes, options: int = 0) -> ByteClient:
    client = connected(port)
    client.send(subscribe(topic_filter, options))
    assert client.take() == (SUBACK, b"\0\1\0" + bytes((options & 3,)))
    return client


def unsubscribe(topic_filter: bytes, packet_id: int = 9) -> bytes:
    return packet(0xA2, packet_id.to_bytes(2, "big"), block(), text(topic_filter))


@pytest.mark.mqtt(
    "MQTT-1.5.7-1", "MQTT-3.3.2-1", "MQTT-3.3.2-13", "MQTT-3.3.2-14", "MQTT-3.3.2-19", "MQTT-3.8.3-1", "MQTT-3.10.3-1"
)
@pytest.mark.parametrize(
    ("data", "reason_codes"),
    [
        (publish(NOT_UTF8), {0x81, 0x99}),
        (publish(b"t", properties=b"\x26" + text(NOT_UTF8) + text(b"v")), {0x81}),
        (publish(b"t", properties=b"\x26" + text(b"k") + text(NOT_UTF8)), {0x81}),
        (publish(b"t", properties=b"\x26" + text(b"k") + text(b"\0")), {0x81}),
        (publish(b"t", properties=b"\x08" + text(NOT_UTF8)), {0x81}),
        (publish(b"t", properties=b"\x08" + text(b"a/+")), {0x82, 0x90}),
        (publish(b"t", properties=b"\x03" + text(NOT_UTF8)), {0x81}),
        (subscribe(NOT_UTF8), {0x81}),
        (unsubscribe(NOT_UTF8), {0x81}),
    ],
)
def test_strings_that_are_not_utf8(server: PenstockServer, data: bytes, reason_codes: set[int]) -> None:
    client = connected(server.port)
    client.send(data)
    ((first_byte, body),) = client.until_closed()
    assert first_byte == 0xE0
    assert body[0] in reason_codes


@pytest.mark.mqtt("MQTT-3.3.1-3", "MQTT-4.3.2-2", "MQTT-4.3.3-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_is_each_hops_own(server: PenstockServer, qos: int) -> None:
    client = subscribed(server.port, b"dup", qos)
    publisher = connected(server.port)
    publisher.send(publish(b"dup", b"1", qos, 5, flags=8))
    assert client.take() == (0x30 | qos << 1, text(b"dup") + b"\0\1\0" + b"1")


@pytest.mark.mqtt("MQTT-3.3.1-8")
def test_retain_0_changes_nothing_that_is_retained(server: PenstockServer) -> None:
    publisher = connected(server.port)
    publisher.send(publish(b"kept", b"1", flags=1), publish(b"kept", b"2"), publish(b"kept", b""))
    publisher.send(publish(b"not kept", b"1", 1, 5))
    assert publisher.take() == (PUBACK, b"\0\5")
    client = subscribed(server.port, b"+")
    assert client.take() == (0x31, text(b"kept") + b"\0" + b"1")
    assert client.until_pong() == []
    publisher.send(publish(b"kept", flags=1))
    assert publisher.until_pong() == []


@pytest.mark.mqtt("MQTT-3.3.4-10", "MQTT-4.9.0-3", "MQTT-3.3.4-9", "MQTT-4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_window_holds_up_nothing_but_messages(server: PenstockServer, qos: int) -> None:
    client = connected(server.port, properties=b"\x21\0\1")
    client.send(subscribe(b"window", qos))
    assert client.take()[0] == SUBACK
    publisher = connected(server.port)
    publisher.send(*(publish(b"window", b"%d" % i, qos, i) for i in (1, 2, 3)))
    assert client.take()[1].endswith(b"1")
    assert client.until_pong() == []
    client.send(subscribe(b"another", 0, 2), publish(b"own", b"", 1, 7), unsubscribe(b"another"))
    assert sorted(client.take()[0] for _ in range(3)) == [PUBACK, SUBACK, UNSUBACK]
    client.send(packet(PUBACK if qos == 1 else PUBREC, b"\0\1"))
    if qos == 2:
        assert client.take() == (PUBREL, b"\0\1")
        client.send(packet(PUBCOMP, b"\0\1"))
    assert client.take()[1].endswith(b"2")


@pytest.mark.mqtt("MQTT-3.4.2-2", "MQTT-3.5.2-2", "MQTT-3.9.2-1", "MQTT-3.1.2-29", "MQTT-3.1.2-24")
@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (publish(b"$SYS/x", b"", 1, 5), (PUBACK, b"\0\5\x87")),
        (publish(b"$SYS/x", b"", 2, 5), (PUBREC, b"\0\5\x87")),
        (subscribe(b"+/x", 0, 5, b"\x26" + text(b"penstock-from") + text(b"@1")), (SUBACK, b"\0\5\0\x83")),
    ],
    ids=["PUBACK", "PUBREC", "SUBACK"],
)
def test_a_reason_string_is_left_out_if_it_is_not_wanted_or_too_much(
    server: PenstockServer, data: bytes, answer: tuple[int, bytes]
) -> None:
    for properties in (b"\x17\0", b"\x27\0\0\0\x20"):
        client = connected(server.port, b"small", properties=properties)
        client.send(data)
        assert client.take() == answer
    client = connected(server.port)
    client.send(data)
    first_byte, body = client.take()
    assert first_byte == answer[0]
    assert b"\x1f" in body
    assert len(body) > 20


@pytest.mark.mqtt("MQTT-3.10.4-3")
def test_unsubscribe_lets_deliveries_come_to_their_end(server: PenstockServer) -> None:
    client = subscribed(server.port, b"begun", 2)
    publisher = connected(server.port)
    publisher.send(publish(b"begun", b"1", 2, 5), packet(PUBREL, b"\0\5"))
    assert client.take()[0] == 0x34
    client.send(unsubscribe(b"begun"))
    assert client.take() == (UNSUBACK, b"\0\x09\0\0")
    client.send(packet(PUBREC, b"\0\1"))
    assert client.take() == (PUBREL, b"\0\1")
    client.send(packet(PUBCOMP, b"\0\1"))
    assert client.until_pong() == []


@pytest.mark.mqtt("MQTT-4.3.2-5", "MQTT-4.3.2-4")
@pytest.mark.parametrize("flags", [0, 8])
def test_after_puback_the_same_identifier_is_another_message(server: PenstockServer, flags: int) -> None:
    client = subscribed(server.port, b"again")
    publisher = connected(server.port)
    for _ in range(2):
        publisher.send(publish(b"again", b"1", 1, 5, flags))
        assert publisher.take() == (PUBACK, b"\0\5")
        assert client.take() == (0x30, text(b"again") + b"\0" + b"1")


@pytest.mark.mqtt("MQTT-4.3.3-13", "MQTT-3.3.2-5")
def test_the_handshake_goes_on_though_the_message_expired(server: PenstockServer) -> None:
    client = subscribed(server.port, b"expired", 2)
    publisher = connected(server.port)
    at_once = b"\x02\0\0\0\0"
    publisher.send(publish(b"expired", b"1", 2, 5, properties=at_once))
    assert publisher.take() == (PUBREC, b"\0\5")
    publisher.send(packet(PUBREL, b"\0\5"))
    assert publisher.take() == (PUBCOMP, b"\0\5")
    (kind, body) = client.take()  # who is there gets it
    assert (kind, body[-7:]) == (0x34, bytes((len(at_once),)) + at_once + b"1")


@pytest.mark.mqtt("3.1.1 MQTT-3.3.5-1", "3.1.1 MQTT-3.8.4-3", "3.1.1 MQTT-3.9.3-2")
def test_statements_of_mqtt_3_about_subscriptions(server: PenstockServer) -> None:
    publisher = connected(server.port)
    publisher.send(publish(b"three/x", b"old", flags=1), publish(b"behind", b"", 1, 5))
    assert publisher.take() == (PUBACK, b"\0\5")
    client = connected(server.port, version=4)
    for qos in (2, 1):
        client.send(subscribe(b"three/x", qos, properties=None))
        assert client.take() == (SUBACK, bytes((0, 1, qos)))
        assert client.take() == (0x31, text(b"three/x") + b"old")
    client.send(subscribe(b"three/+", 0, properties=None))
    assert client.take()[0] == SUBACK
    assert client.take()[0] == 0x31
    publisher.send(publish(b"three/x", b"new", 2, 5))
    assert client.take() == (0x32, text(b"three/x") + b"\0\1" + b"new")
    client.send(subscribe(b"one too many", 0, properties=None))
    assert client.take() == (SUBACK, b"\0\1\x80")
    publisher.send(publish(b"three/x", b"", flags=1))
    assert publisher.until_pong()[-1:] in ([], [(PUBREC, b"\0\5")])


@pytest.mark.mqtt("MQTT-3.6.2-2", "MQTT-3.6.2-3", "MQTT-3.7.2-2", "MQTT-3.7.2-3", "MQTT-3.9.2-2", "MQTT-3.11.2-1")
@pytest.mark.mqtt("MQTT-3.11.2-2", "MQTT-3.14.2-3", "MQTT-3.14.2-4", "MQTT-3.1.2-24")
@pytest.mark.parametrize("most", [9, 200])
def test_no_answer_is_larger_than_the_client_takes(server: PenstockServer, most: int) -> None:
    """Whatever is answered, and though there were reasons to be told: as it stands, so nothing was added."""
    client = connected(server.port, b"small", properties=b"\x27" + most.to_bytes(4, "big"))
    client.send(subscribe(b"s", 2), publish(b"s", b"1", 2, 7))
    came = sorted(client.take() for _ in range(3))
    assert came == [(0x34, text(b"s") + b"\0\1\0" + b"1"), (PUBREC, b"\0\7"), (SUBACK, b"\0\1\0\2")]
    client.send(packet(PUBREL, b"\0\7"), packet(PUBREC, b"\0\1"))
    assert sorted(client.take() for _ in range(2)) == [(PUBREL, b"\0\1"), (PUBCOMP, b"\0\7")]
    client.send(packet(PUBCOMP, b"\0\1"), unsubscribe(b"s"), unsubscribe(b"never"))
    assert [client.take() for _ in range(2)] == [(UNSUBACK, b"\0\x09\0\0"), (UNSUBACK, b"\0\x09\0\x11")]
    client.send(publish(b"a/+"))
    ((first_byte, body),) = client.until_closed()
    assert first_byte == 0xE0
    assert len(body) + 2 <= most
    assert (len(body) == 1) == (most == 9)
    assert b"\x26" not in body[1:3]
