"""The errors of the gateway: one base, and the two that a peer's packets can cause."""

from __future__ import annotations

from gateway.mqtt.reason_codes import ReasonCode


class GatewayError(Exception):
    """Base of every error that the gateway raises on purpose."""


class ProtocolError(GatewayError):
    """A packet can be parsed, but breaks a rule of MQTT (MQTT 5.0, 1.2 and 4.13)."""

    reason_code: ReasonCode
    message: str
    connack_version: int | None
    """For an error in a CONNECT: the MQTT version in which the peer understands a CONNACK with `reason_code`. None:
    close the connection without an answer.
    """

    def __init__(self, reason_code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code
        self.message = message
        self.connack_version = None


class MalformedPacket(ProtocolError):
    """A packet cannot be parsed at all (MQTT 5.0, 1.2)."""

    def __init__(self, message: str, reason_code: ReasonCode = ReasonCode.MALFORMED_PACKET) -> None:
        super().__init__(reason_code, message)
