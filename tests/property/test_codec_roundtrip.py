"""Any packet survives encoding and decoding; any bytes are a packet or a ProtocolError."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt.codec import decode, decode_varint, encode, encode_varint
from gateway.mqtt.codec_rules import ALLOWED_REASON_CODES
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    RetainHandling,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import (
    BINARY_DATA,
    BYTE,
    FLAG,
    FOUR_BYTE_INTEGER,
    PROPERTY_SPECS,
    TWO_BYTE_INTEGER,
    UTF8_STRING,
    UTF8_STRING_PAIR,
    VARIABLE_BYTE_INTEGER,
    PacketContext,
    Properties,
    PropertySpec,
    decode_properties,
    encode_properties,
    encode_property_block,
)
from gateway.mqtt.reason_codes import REASON_OF_CONNACK_RETURN_CODE, ReasonCode

versions = st.sampled_from((4, 5))
flags = st.booleans()
qos = st.sampled_from(QoS)
packet_ids = st.integers(1, 65_535)
binary = st.binary(max_size=40)
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
text = st.text(characters, max_size=20)
level_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=6)
topic_names = st.lists(level_text, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(level_text | st.just("+"), min_size=1, max_size=4))
    topic_filter = "/".join([*levels, "#"] if draw(flags) else levels)
    return topic_filter if topic_filter and not topic_filter.startswith("$share/") else "a/+"


def reasons(packet_type: PacketType, version: int) -> st.SearchStrategy[ReasonCode]:
    """In 3.1.1 the codes that come back as they were sent."""
    of_3_1_1 = {
        PacketType.CONNACK: list(REASON_OF_CONNACK_RETURN_CODE.values()),
        PacketType.SUBACK: [*map(ReasonCode, range(3)), ReasonCode.UNSPECIFIED_ERROR],
    }
    if version == 4:
        return st.sampled_from(of_3_1_1.get(packet_type, [ReasonCode.SUCCESS]))
    return st.sampled_from(sorted(ALLOWED_REASON_CODES[packet_type]))


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    BYTE: st.integers(0, 1),
    FLAG: flags,
    TWO_BYTE_INTEGER: st.integers(1, 65_535),
    FOUR_BYTE_INTEGER: st.integers(1, 2**32 - 1),
    VARIABLE_BYTE_INTEGER: st.integers(1, 268_435_455),
    UTF8_STRING: text,
    UTF8_STRING_PAIR: st.tuples(text, text),
    BINARY_DATA: binary,
}


def property_values(spec: PropertySpec, context: PacketContext) -> st.SearchStrategy[Any]:
    values = topic_names if spec.field == "response_topic" else VALUES[spec.data_type]
    if spec.is_tuple:
        count = 3 if context in spec.may_repeat_in else 1
        return st.lists(values, min_size=1, max_size=count).map(tuple)
    return values


def properties(context: PacketContext, version: int = 5) -> st.SearchStrategy[Properties]:
    if version == 4:
        return st.just(Properties())
    allowed = [spec for spec in PROPERTY_SPECS if context in spec.packets]
    return st.fixed_dictionaries({}, optional={spec.field: property_values(spec, context) for spec in allowed}).map(
        lambda values: Properties(**values)
    )


def properties_with_method(context: PacketContext, version: int) -> st.SearchStrategy[Properties]:
    def add_method(props: Properties) -> Properties:
        if props.authentication_data is not None and props.authentication_method is None:
            props.authentication_method = "method"
        return props

    return properties(context, version).map(add_method)


def wills(version: int) -> st.SearchStrategy[Will]:
    return st.builds(Will, topic_names, binary, qos, flags, properties(PacketContext.WILL, version))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    packet = Connect(
        draw(text),
        version,
        draw(flags),
        draw(st.integers(0, 65_535)),
        draw(st.none() | text),
        draw(st.none() | binary),
        draw(st.none() | wills(version)),
        draw(properties_with_method(PacketContext.CONNECT, version)),
    )
    if version == 4:
        packet.is_bridge = draw(flags)
        packet.clean_start |= not packet.client_id
        packet.username = packet.username or ("user" if packet.password is not None else None)
    return packet


@st.composite
def connacks(draw: st.DrawFn, version: int) -> ConnAck:
    reason_code = draw(reasons(PacketType.CONNACK, version))
    session_present = draw(flags) and not reason_code.is_failure
    return ConnAck(session_present, reason_code, draw(properties(PacketContext.CONNACK, version)))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    packet = Publish(
        draw(topic_names),
        draw(binary),
        draw(qos),
        draw(flags),
        properties=draw(properties(PacketContext.PUBLISH, version)),
    )
    if packet.qos:
        packet.packet_id = draw(packet_ids)
        packet.dup = draw(flags)
    if packet.properties.topic_alias is not None and draw(flags):
        packet.topic_name = ""
    return packet


def acknowledgements(version: int) -> st.SearchStrategy[Packet]:
    return st.one_of(
        *(
            st.builds(
                packet_class,
                packet_ids,
                reasons(packet_class.packet_type, version),
                properties(PacketContext(packet_class.packet_type), version),
            )
            for packet_class in (PubAck, PubRec, PubRel, PubComp)
        )
    )


@st.composite
def subscription_requests(draw: st.DrawFn, version: int) -> SubscriptionRequest:
    request = SubscriptionRequest(draw(topic_filters()), draw(qos))
    if version == 5:
        request.no_local = draw(flags)
        request.retain_as_published = draw(flags)
        request.retain_handling = draw(st.sampled_from(RetainHandling))
        if not request.no_local and draw(flags):
            request.topic_filter = f"$share/group/{request.topic_filter}"
    return request


def subscribes(version: int) -> st.SearchStrategy[Subscribe]:
    requests = st.lists(subscription_requests(version), min_size=1, max_size=3).map(tuple)
    return st.builds(Subscribe, packet_ids, requests, properties(PacketContext.SUBSCRIBE, version))


def subacks(version: int) -> st.SearchStrategy[SubAck]:
    codes = st.lists(reasons(PacketType.SUBACK, version), min_size=1, max_size=3).map(tuple)
    return st.builds(SubAck, packet_ids, codes, properties(PacketContext.SUBACK, version))


def unsubscribes(version: int) -> st.SearchStrategy[Unsubscribe]:
    filters = st.lists(topic_filters(), min_size=1, max_size=3).map(tuple)
    props = properties(PacketContext.UNSUBSCRIBE, version)
    return st.builds(Unsubscribe, packet_ids, filters, props)


def unsubacks(version: int) -> st.SearchStrategy[UnsubAck]:
    if version == 4:
        return st.builds(UnsubAck, packet_ids)
    codes = st.lists(reasons(PacketType.UNSUBACK, version), min_size=1, max_size=3).map(tuple)
    return st.builds(UnsubAck, packet_ids, codes, properties(PacketContext.UNSUBACK))


def disconnects(version: int) -> st.SearchStrategy[Disconnect]:
    return st.builds(
        Disconnect,
        reasons(PacketType.DISCONNECT, version),
        properties(PacketContext.DISCONNECT, version),
    )


@st.composite
def auths(draw: st.DrawFn) -> Auth:
    packet = Auth(draw(reasons(PacketType.AUTH, 5)), draw(properties(PacketContext.AUTH)))
    packet.properties.authentication_method = draw(text)
    return packet


PACKETS: tuple[Callable[[int], st.SearchStrategy[Any]], ...] = (
    connects,
    connacks,
    publishes,
    acknowledgements,
    subscribes,
    subacks,
    unsubscribes,
    unsubacks,
    disconnects,
    lambda _: st.sampled_from((PingReq(), PingResp())),
    lambda version: auths() if version == 5 else st.just(PingReq()),
)


def split_header(data: bytes) -> tuple[int, bytes]:
    length, pos = decode_varint(data, 1)
    assert length == len(data) - pos
    return data[0], data[pos:]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("packets", PACKETS)
def test_a_packet_comes_back(packets: Callable[[int], st.SearchStrategy[Any]], version: int) -> None:
    @given(packets(version))
    def comes_back(packet: Packet) -> None:
        first_byte, body = split_header(encode(packet, version))
        decoded = decode(first_byte, memoryview(body), version)
        assert decoded == packet
        assert encode(decoded, version) == encode(packet, version)

    comes_back()


def decode_or_refuse(first_byte: int, body: bytes, version: int) -> None:
    """What is refused can be told to the peer; what is accepted can be sent on."""
    try:
        packet = decode(first_byte, body, version)
    except ProtocolError as error:
        refusal = error
    else:
        first_byte_again, body_again = split_header(encode(packet, version))
        assert decode(first_byte_again, body_again, version) == packet
        return
    answer = PacketType.CONNACK if first_byte >> 4 == 1 else PacketType.DISCONNECT
    assert refusal.reason_code in ALLOWED_REASON_CODES[answer]
    assert refusal.message


@given(st.integers(0, 255), st.binary(max_size=60), versions)
def test_random_bytes(first_byte: int, body: bytes, version: int) -> None:
    decode_or_refuse(first_byte, body, version)


@given(versions, st.sampled_from(PACKETS), st.data())
def test_packets_with_one_byte_changed_or_cut(
    version: int, packets: Callable[[int], st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    first_byte, body = split_header(encode(data.draw(packets(version)), version))
    damaged = bytearray(body)
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(first_byte, bytes(damaged), version)
    decode_or_refuse(first_byte, body[: data.draw(st.integers(0, len(body)))], version)


@given(st.binary(max_size=60), st.sampled_from(PacketContext))
def test_random_properties(data: bytes, context: PacketContext) -> None:
    try:
        props, pos = decode_properties(data, 0, context)
    except ProtocolError:
        return
    assert pos <= len(data)
    assert decode_properties(encode_property_block(props), 0, context)[0] == props


@pytest.mark.parametrize("context", PacketContext)
def test_properties_come_back(context: PacketContext) -> None:
    @given(properties(context))
    def come_back(props: Properties) -> None:
        block = encode_property_block(props)
        assert block.endswith(encode_properties(props))
        assert decode_properties(block, 0, context) == (props, len(block))

    come_back()


@pytest.mark.mqtt("MQTT-1.5.5-1")
@given(st.integers(0, 268_435_455), st.binary(max_size=4))
def test_varints_come_back(value: int, rest: bytes) -> None:
    encoded = encode_varint(value)
    assert decode_varint(encoded + rest, 0) == (value, len(encoded))
