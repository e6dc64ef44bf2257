"""Encoding: fields that it leaves out for MQTT 3.1.1, and packets that it refuses to send."""

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    PubRel,
    QoS,
    RetainHandling,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode

NOTE = Properties(user_properties=(("k", "v"),))

ONLY_MQTT_5_CAN_SAY: tuple[tuple[Packet, Packet], ...] = (
    (ConnAck(properties=NOTE), ConnAck()),
    (Publish("a", b"x", properties=NOTE), Publish("a", b"x")),
    (PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS, NOTE), PubAck(1)),
    (
        SubAck(1, (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED), NOTE),
        SubAck(1, (ReasonCode.GRANTED_QOS_1, ReasonCode.UNSPECIFIED_ERROR)),
    ),
    (
        Subscribe(
            1,
            (
                SubscriptionRequest(
                    "a",
                    no_local=True,
                    retain_as_published=True,
                    retain_handling=RetainHandling.DO_NOT_SEND,
                ),
            ),
            NOTE,
        ),
        Subscribe(1, (SubscriptionRequest("a"),)),
    ),
    (Unsubscribe(1, ("a",), NOTE), Unsubscribe(1, ("a",))),
    (UnsubAck(1, (ReasonCode.NO_SUBSCRIPTION_EXISTED,), NOTE), UnsubAck(1, (ReasonCode.SUCCESS,))),
    (Disconnect(ReasonCode.SERVER_BUSY, NOTE), Disconnect()),
)


@pytest.mark.parametrize(("packet", "plain"), ONLY_MQTT_5_CAN_SAY)
def test_3_1_1_leaves_out_what_it_cannot_say(packet: Packet, plain: Packet) -> None:
    assert encode(packet, 4) == encode(plain, 4)
    assert encode(packet, 5) != encode(plain, 5)


NOT_SENT: tuple[tuple[int, Packet, ReasonCode, str], ...] = (
    (4, Auth(), ReasonCode.MALFORMED_PACKET, "AUTH"),
    (
        5,
        Auth(ReasonCode.RE_AUTHENTICATE),
        ReasonCode.PROTOCOL_ERROR,
        "authentication_method",
    ),
    (
        5,
        ConnAck(reason_code=ReasonCode.GRANTED_QOS_1),
        ReasonCode.PROTOCOL_ERROR,
        "reason_code",
    ),
    (5, ConnAck(True, ReasonCode.BANNED), ReasonCode.PROTOCOL_ERROR, "session_present"),
    (5, Publish("a", packet_id=1), ReasonCode.MALFORMED_PACKET, "packet_id"),
    (5, Publish("a", qos=QoS.AT_LEAST_ONCE), ReasonCode.PROTOCOL_ERROR, "packet_id"),
    (
        4,
        Publish("a", qos=QoS.AT_LEAST_ONCE, packet_id=65_536),
        ReasonCode.MALFORMED_PACKET,
        "packet_id",
    ),
    (5, Publish("a", dup=True), ReasonCode.MALFORMED_PACKET, "dup"),
    (5, Publish("a/+"), ReasonCode.TOPIC_NAME_INVALID, "topic_name"),
    (5, Publish("a" * 65_536), ReasonCode.TOPIC_NAME_INVALID, "topic_name"),
    (5, Publish(""), ReasonCode.PROTOCOL_ERROR, "topic_name"),
    (4, Publish("", properties=Properties(topic_alias=1)), ReasonCode.PROTOCOL_ERROR, "topic_name"),
    (
        5,
        Publish("a", properties=Properties(receive_maximum=1)),
        ReasonCode.MALFORMED_PACKET,
        "receive_maximum",
    ),
    (4, PubAck(0), ReasonCode.PROTOCOL_ERROR, "packet_id"),
    (5, PubRel(1, ReasonCode.QUOTA_EXCEEDED), ReasonCode.PROTOCOL_ERROR, "reason_code"),
    (5, Subscribe(1, ()), ReasonCode.PROTOCOL_ERROR, "subscriptions"),
    (
        5,
        Subscribe(1, (SubscriptionRequest("$share/g/a", no_local=True),)),
        ReasonCode.PROTOCOL_ERROR,
        "no_local",
    ),
    (
        5,
        Subscribe(1, (SubscriptionRequest("a"),), Properties(subscription_identifiers=(1, 2))),
        ReasonCode.PROTOCOL_ERROR,
        "subscription_identifiers",
    ),
    (5, Unsubscribe(1, ()), ReasonCode.PROTOCOL_ERROR, "topic_filters"),
    (4, SubAck(1, ()), ReasonCode.PROTOCOL_ERROR, "reason_codes"),
    (5, UnsubAck(1), ReasonCode.PROTOCOL_ERROR, "reason_codes"),
    (
        5,
        UnsubAck(1, (ReasonCode.GRANTED_QOS_2,)),
        ReasonCode.PROTOCOL_ERROR,
        "reason_code",
    ),
    (5, Disconnect(ReasonCode.BANNED), ReasonCode.PROTOCOL_ERROR, "reason_code"),
)


@pytest.mark.parametrize(("version", "packet", "reason_code", "words"), NOT_SENT)
def test_invalid_packets_are_not_encoded(version: int, packet: Packet, reason_code: ReasonCode, words: str) -> None:
    with pytest.raises(ProtocolError, match=words) as caught:
        encode(packet, version)
    assert caught.value.reason_code is reason_code


def test_numbers_that_the_type_checker_would_refuse() -> None:
    with pytest.raises(ProtocolError, match="PUBLISH qos"):
        encode(Publish("a", qos=3, packet_id=1), 5)  # type: ignore[arg-type]
    request = SubscriptionRequest("a", retain_handling=3)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="SUBSCRIBE retain_handling"):
        encode(Subscribe(1, (request,)), 5)
