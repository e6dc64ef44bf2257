"""Reason codes of MQTT 5.0 (2.4), and the corresponding return codes of MQTT 3.1.1."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import Final


class ReasonCode(IntEnum):
    """Every MQTT 5.0 reason code; names that share a value are aliases of the first."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def is_failure(self) -> bool:
        """Whether the operation failed: "0x80 or greater" (MQTT 5.0, 2.4)."""
        return self >= ReasonCode.UNSPECIFIED_ERROR


REASON_OF_CONNACK_RETURN_CODE: Final = MappingProxyType(
    {
        0: ReasonCode.SUCCESS,
        1: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        2: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        3: ReasonCode.SERVER_UNAVAILABLE,
        4: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        5: ReasonCode.NOT_AUTHORIZED,
    }
)
"""MQTT 3.1.1, table 3.1."""

_SERVER_UNAVAILABLE_RETURN_CODE: Final = 3

_CONNACK_RETURN_CODES: Final = MappingProxyType(
    {
        **{reason: code for code, reason in REASON_OF_CONNACK_RETURN_CODE.items()},
        ReasonCode.BAD_AUTHENTICATION_METHOD: 4,
        ReasonCode.BANNED: 5,
    }
)


def connack_return_code(reason: ReasonCode) -> int:
    """The MQTT 3.1.1 CONNACK return code nearest to `reason`.

    A reason without a counterpart becomes 3, "server unavailable". A malformed packet gets no CONNACK at all in that
    standard [3.1.1 MQTT-3.2.2-6]: see `ProtocolError`.
    """
    return _CONNACK_RETURN_CODES.get(reason, _SERVER_UNAVAILABLE_RETURN_CODE)
