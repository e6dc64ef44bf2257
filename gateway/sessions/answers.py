"""Packets that tell a client more than a reason code, as far as its version and its limits allow."""

from __future__ import annotations

from typing import Final, Protocol

from gateway.mqtt.codec import encode
from gateway.mqtt.codec_rules import ALLOWED_REASON_CODES
from gateway.mqtt.packets import ConnAck, Disconnect, PacketType, PubAck, PubRec, SubAck
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode

MOST_REASON_CHARACTERS: Final = 200
Answer = PubAck | PubRec | SubAck
"""Those that may say more than a reason code."""


class AnsweredClient(Protocol):
    """What a client said in its CONNECT of the answers that it takes."""

    version: int
    max_packet_out: int
    tells_problems: bool


def fitting(client: AnsweredClient, packet: Answer) -> bytes:
    """The packet, without reason string and user properties if they are not wanted or would make it too large."""
    properties = packet.properties
    if properties.reason_string is None and not properties.user_properties:
        return encode(packet, client.version)
    if client.version == 5 and client.tells_problems:
        data = encode(packet, client.version)
        if len(data) <= client.max_packet_out:
            return data
    properties.reason_string, properties.user_properties = None, ()
    return encode(packet, client.version)


def goodbye(client: AnsweredClient, is_new: bool, reason_code: ReasonCode, message: str, goes_on_at: str) -> bytes:
    """CONNACK (`is_new`) or DISCONNECT for the client's version, without a too long reason string [MQTT-3.2.2-19].

    `goes_on_at`: the server that a client is sent to, for USE_ANOTHER_SERVER.
    """
    if reason_code is not ReasonCode.USE_ANOTHER_SERVER:
        goes_on_at = ""
    if is_new:
        if reason_code is ReasonCode.SESSION_TAKEN_OVER:  # before it had one
            reason_code = ReasonCode.SERVER_BUSY
        if reason_code not in ALLOWED_REASON_CODES[PacketType.CONNACK] or not client.version:
            return b""
        if client.version != 5:
            return encode(ConnAck(False, reason_code), client.version)
    elif client.version != 5:
        return b""
    elif reason_code not in ALLOWED_REASON_CODES[PacketType.DISCONNECT]:
        reason_code = ReasonCode.PROTOCOL_ERROR
    for text, reference in ((message[:MOST_REASON_CHARACTERS], goes_on_at), ("", goes_on_at), ("", "")):
        properties = Properties(reason_string=text or None, server_reference=reference or None)
        packet = ConnAck(False, reason_code, properties) if is_new else Disconnect(reason_code, properties)
        data = encode(packet, client.version)
        if len(data) <= client.max_packet_out:
            return data
    return b""
