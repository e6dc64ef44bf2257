"""A CONNECT that is refused: why, and in which version of MQTT the answer can be understood."""

import pytest

from gateway.mqtt.codec import decode, encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import ConnAck, Connect, Will
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode, connack_return_code

NAME = "0004 4d515454"
HEAD_4 = f"{NAME} 04"
HEAD_5 = f"{NAME} 05"
# connect flags follow; then keep alive, properties (5.0) and an empty client identifier
TAIL_4 = "000a 0000"
TAIL_5 = "000a 00 0000"

MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
UNSUPPORTED = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
BAD_NAME = ReasonCode.TOPIC_NAME_INVALID

REFUSED = (
    ("", MALFORMED, None, "protocol name"),
    (NAME, MALFORMED, None, "protocol version"),
    (f"0006 4d5149736470 03 02 {TAIL_4}", UNSUPPORTED, 4, "MQIsdp"),
    (f"0004 6d717474 05 02 {TAIL_5}", UNSUPPORTED, 5, "mqtt"),
    (f"{NAME} 03 02 {TAIL_4}", UNSUPPORTED, 4, "protocol version"),
    (f"{NAME} 06 02 {TAIL_5}", UNSUPPORTED, 5, "protocol version"),
    (f"{NAME} 83 02 {TAIL_4}", UNSUPPORTED, 4, "protocol version"),
    (f"0006 4d5149736470 83 02 {TAIL_4}", UNSUPPORTED, 4, "MQIsdp"),
    (f"{NAME} 85 02 {TAIL_5}", UNSUPPORTED, 5, "protocol version"),
    (f"{NAME} 84 03 {TAIL_4}", MALFORMED, None, "reserved"),
    (f"{NAME} 84 00 {TAIL_4}", ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 4, "client_id"),
    (HEAD_4, MALFORMED, None, "connect flags"),
    (HEAD_5, MALFORMED, 5, "connect flags"),
    (f"{HEAD_4} 03 {TAIL_4}", MALFORMED, None, "reserved"),
    (f"{HEAD_5} 03 {TAIL_5}", MALFORMED, 5, "reserved"),
    (f"{HEAD_5} 0a {TAIL_5}", MALFORMED, 5, "will qos"),
    (f"{HEAD_5} 22 {TAIL_5}", MALFORMED, 5, "will retain"),
    (f"{HEAD_5} 1e {TAIL_5} 00 0001 61 0000", MALFORMED, 5, "will qos"),
    (f"{HEAD_4} 06 {TAIL_4}", MALFORMED, None, "will topic_name"),
    (f"{HEAD_4} 06 {TAIL_4} 0001 61", MALFORMED, None, "will payload"),
    (f"{HEAD_4} 06 {TAIL_4} 0001 23 0000", BAD_NAME, None, "will topic_name"),
    (f"{HEAD_5} 06 {TAIL_5} 00 0000 0000", BAD_NAME, 5, "will topic_name"),
    (f"{HEAD_5} 06 {TAIL_5} 03 23 0001 0001 61 0000", MALFORMED, 5, "WILL topic_alias"),
    (f"{HEAD_4} 42 {TAIL_4} 0001 70", MALFORMED, None, "password"),
    (f"{HEAD_4} 82 {TAIL_4}", MALFORMED, None, "username"),
    (f"{HEAD_4} 82 {TAIL_4} 0001 ff", MALFORMED, None, "username"),
    (f"{HEAD_4} c2 {TAIL_4} 0001 75 0002 70", MALFORMED, None, "password"),
    (f"{HEAD_4} 00 {TAIL_4}", ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 4, "client_id"),
    (f"{HEAD_4} 02 000a 0001 00", MALFORMED, None, "client_id"),
    (f"{HEAD_5} 02 000a", MALFORMED, 5, "property length"),
    (f"{HEAD_5} 02 000a 05 18 00000001 0000", MALFORMED, 5, "will_delay_interval"),
    (f"{HEAD_5} 02 000a 03 21 0000 0000", PROTOCOL, 5, "receive_maximum"),
    (f"{HEAD_5} 02 000a 05 27 00000000 0000", PROTOCOL, 5, "maximum_packet_size"),
    (f"{HEAD_5} 02 000a 02 17 02 0000", PROTOCOL, 5, "request_problem_information"),
    (f"{HEAD_5} 02 000a 03 16 0000 0000", PROTOCOL, 5, "authentication_data"),
    (f"{HEAD_4} 02 {TAIL_4} 00", MALFORMED, None, "after the end"),
    (f"{HEAD_5} 02 {TAIL_5} 00", MALFORMED, 5, "after the end"),
)


@pytest.mark.parametrize(("text", "reason_code", "connack_version", "words"), REFUSED)
def test_is_refused(text: str, reason_code: ReasonCode, connack_version: int | None, words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(0x10, bytes.fromhex(text), 4)
    error = caught.value
    assert (error.reason_code, error.connack_version) == (reason_code, connack_version)
    assert words in error.message
    if connack_version is not None:
        encode(ConnAck(reason_code=error.reason_code), connack_version)


@pytest.mark.parametrize("version_of_the_connection", [4, 5])
@pytest.mark.parametrize("protocol_version", [4, 5])
def test_a_connect_says_itself_which_version_it_is(protocol_version: int, version_of_the_connection: int) -> None:
    packet = Connect("c", protocol_version, will=Will("w"))
    data = encode(packet, version_of_the_connection)
    assert decode(data[0], data[2:], version_of_the_connection) == packet


def test_a_bridge_of_mqtt_3_1_1_says_that_it_is_one() -> None:
    packet = Connect("b", 4, is_bridge=True, will=Will("w"))
    data = encode(packet, 4)
    assert data[2:9] == b"\0\4MQTT\x84"
    assert decode(data[0], data[2:], 5) == packet


def test_only_mqtt_5_allows_an_empty_client_identifier_to_resume_or_a_lone_password() -> None:
    packet = Connect("", clean_start=False, password=b"p")
    data = encode(packet, 5)
    assert decode(data[0], data[2:], 5) == packet


@pytest.mark.parametrize(
    "packet",
    [
        Connect("", protocol_version=4, clean_start=False),
        Connect("c", protocol_version=4, password=b"p"),
        Connect("c", protocol_version=3),
        Connect("c", protocol_version=5, is_bridge=True),
        Connect("c", keep_alive_s=65_536),
        Connect("c", keep_alive_s=-1),
        Connect("c" * 65_536),
        Connect("c", password=bytes(65_536)),
        Connect("\ud800"),
        Connect("c", will=Will("a/#")),
        Connect("c", will=Will("w", properties=Properties(topic_alias=1))),
        Connect("c", properties=Properties(will_delay_interval=1)),
        Connect("c", properties=Properties(authentication_data=b"d")),
    ],
)
def test_invalid_connect_is_not_encoded(packet: Connect) -> None:
    with pytest.raises(ProtocolError):
        encode(packet, packet.protocol_version)


@pytest.mark.parametrize(
    ("reason_code", "return_code"),
    [
        (ReasonCode.SUCCESS, 0),
        (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 1),
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 2),
        (ReasonCode.SERVER_UNAVAILABLE, 3),
        (ReasonCode.SERVER_BUSY, 3),
        (ReasonCode.QUOTA_EXCEEDED, 3),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4),
        (ReasonCode.BAD_AUTHENTICATION_METHOD, 4),
        (ReasonCode.NOT_AUTHORIZED, 5),
        (ReasonCode.BANNED, 5),
    ],
)
def test_return_codes_of_3_1_1(reason_code: ReasonCode, return_code: int) -> None:
    assert connack_return_code(reason_code) == return_code
    assert encode(ConnAck(reason_code=reason_code), 4) == bytes((0x20, 2, 0, return_code))
