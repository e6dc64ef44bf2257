"""An MQTT broker as a flow names it: its URL and the flow's `mqtt` options."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.topics import validate_topic_name
from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError
from penstock.flows.trust import trusted

PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
SAY_MQTT_URL: Final = "say mqtt://HOST or mqtts://HOST:PORT/PREFIX"


class MqttPlace(NamedTuple):
    """`prefix`: before each topic, with its slash; empty: topics stay as they are. `tls`: None without TLS."""

    host: str
    port: int
    prefix: str
    user: str
    password: str
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"MQTT, {self.host}:{self.port}"


def mqtt_place(flow: Flow) -> MqttPlace:
    """Where `to` leads. Raises FlowError."""
    said, url = flow.said.mqtt, flow.said.to
    if flow.mqtt_password and not said.user:
        raise FlowError(flow.name, "mqtt", "a password comes with a user", "say mqtt.user as well")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or PORTS[parts.scheme]
    except ValueError as error:
        raise FlowError(flow.name, "to", f"{url!r}: {error}", SAY_MQTT_URL) from None
    if not host or parts.query or parts.fragment:
        raise FlowError(flow.name, "to", f"{url!r} names no host with a prefix alone", SAY_MQTT_URL)
    prefix = unquote(parts.path.strip("/"))
    if prefix:
        prefix += "/"
        try:
            validate_topic_name(prefix)
        except ProtocolError as error:
            raise FlowError(flow.name, "to", f"{prefix!r} begins no topic: {error}", SAY_MQTT_URL) from None
    tls = None
    if parts.scheme == "mqtts":
        found = trusted(flow)
        tls = found if isinstance(found, ssl.SSLContext) else ssl.create_default_context()
    return MqttPlace(host, port, prefix, said.user, flow.mqtt_password, tls)
