"""An MQTT broker as a flow names it: its URL and the flow's `mqtt` options."""

from __future__ import annotations

import ssl
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.topics import validate_topic_filter, validate_topic_name
from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError
from penstock.flows.trust import trusted

PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
Field = Literal["to", "from"]
SAY: Final[dict[Field, str]] = {
    "to": "say mqtt://HOST or mqtts://HOST:PORT/PREFIX",
    "from": "say mqtt://HOST/TOPIC/FILTER or mqtts://HOST:PORT/TOPIC/FILTER",
}


class MqttPlace(NamedTuple):
    """`path`: of `to`, what goes before each topic, with its slash; of `from`, the topic filter. `tls`: None without
    TLS."""

    host: str
    port: int
    path: str
    user: str
    password: str
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"MQTT, {self.host}:{self.port}"


def mqtt_place(flow: Flow, field: Field = "to") -> MqttPlace:
    """What a field of the flow names. Raises FlowError."""
    said, url = flow.said.mqtt, flow.said.to if field == "to" else flow.said.from_
    if flow.mqtt_password and not said.user:
        raise FlowError(flow.name, "mqtt", "a password comes with a user", "say mqtt.user as well")
    scheme, _, rest = url.partition(":")
    authority, _, path = rest.removeprefix("//").partition("/") if rest.startswith("//") else ("", "", "")
    try:
        parts = urlsplit(f"{scheme}://{authority}")
        host, port = parts.hostname, parts.port or PORTS[scheme]
    except ValueError as error:
        raise FlowError(flow.name, field, f"{url!r}: {error}", SAY[field]) from None
    if "@" in authority:
        remedy = 'say mqtt = { user = "ME", password = { env = "NAME" } }'
        raise FlowError(flow.name, field, "a URL has no password here", remedy)
    path = unquote(path)
    if not host or parts.query or parts.fragment or (field == "to" and "?" in path):
        raise FlowError(flow.name, field, f"{url!r} names no host with a path alone", SAY[field])
    if field == "to":
        path = path.strip("/")
        path = f"{path}/" if path else ""
    try:
        if field == "from":
            validate_topic_filter(path)
        elif path:
            validate_topic_name(path)
    except ProtocolError as error:
        reason = f"{path!r} {'is no topic filter' if field == 'from' else 'begins no topic'}: {error}"
        raise FlowError(flow.name, field, reason, SAY[field]) from None
    tls = None
    if scheme == "mqtts":
        found = trusted(flow)
        tls = found if isinstance(found, ssl.SSLContext) else ssl.create_default_context()
    return MqttPlace(host, port, path, said.user, flow.mqtt_password, tls)


def mark_of(store: str, place: MqttPlace) -> str:
    """That a message came into a store from a broker; `store`: the identity of its log, empty if that is not known."""
    return f"{store}<{place.host}:{place.port}" if store else ""
