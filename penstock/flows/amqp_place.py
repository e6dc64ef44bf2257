"""An exchange of an AMQP broker as a flow names it: its URL and the flow's `amqp` options."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError
from penstock.flows.trust import trusted

PORTS: Final = {"amqp": 5672, "amqps": 5671}
GUEST: Final = "guest"  # user and password of a new broker, for clients on its own machine
MOST_NAME_BYTES: Final = 255  # of an exchange, and of whatever else AMQP 0-9-1 has as a short string
SAY_AMQP_URL: Final = "say amqp://HOST/EXCHANGE or amqps://HOST:PORT/EXCHANGE"


class AmqpPlace(NamedTuple):
    """`exchange`: empty is the default one, whose routing keys are names of queues. `tls`: None without TLS."""

    host: str
    port: int
    exchange: str
    vhost: str
    user: str
    password: str
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"AMQP, {self.host}:{self.port}"


def amqp_place(flow: Flow) -> AmqpPlace:
    """Where `to` leads. Raises FlowError."""
    said, url = flow.said.amqp, flow.said.to
    if bool(said.user) != bool(flow.amqp_password):
        raise FlowError(flow.name, "amqp", "a user comes with a password", "say both, or neither")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or PORTS[parts.scheme]
    except ValueError as error:
        raise FlowError(flow.name, "to", f"{url!r}: {error}", SAY_AMQP_URL) from None
    if not host or parts.query or parts.fragment:
        raise FlowError(flow.name, "to", f"{url!r} names no host with an exchange alone", SAY_AMQP_URL)
    exchange = unquote(parts.path.removeprefix("/"))
    if "/" in parts.path.removeprefix("/") or len(exchange.encode()) > MOST_NAME_BYTES:
        reason = f"{exchange[:MOST_NAME_BYTES]!r} is no exchange"
        raise FlowError(flow.name, "to", reason, "say its name alone, / as %2F; amqp.vhost has the virtual host")
    tls = None
    if parts.scheme == "amqps":
        found = trusted(flow)
        tls = found if isinstance(found, ssl.SSLContext) else ssl.create_default_context()
    return AmqpPlace(host, port, exchange, said.vhost, said.user or GUEST, flow.amqp_password or GUEST, tls)
