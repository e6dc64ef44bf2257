"""An exchange or a queue of an AMQP broker as a flow names it: its URL and the flow's `amqp` options."""

from __future__ import annotations

import ssl
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError
from penstock.flows.trust import trusted

PORTS: Final = {"amqp": 5672, "amqps": 5671}
GUEST: Final = "guest"  # user and password of a new broker, for clients on its own machine
MOST_NAME_BYTES: Final = 255  # of an exchange, and of whatever else AMQP 0-9-1 has as a short string
Field = Literal["to", "from"]
KINDS: Final[dict[Field, str]] = {"to": "exchange", "from": "queue"}


class AmqpPlace(NamedTuple):
    """`field`: of the flow, `to` names an exchange and `from` a queue. An empty exchange is the default one, whose
    routing keys are names of queues. `tls`: None without TLS."""

    host: str
    port: int
    name: str
    vhost: str
    user: str
    password: str
    tls: ssl.SSLContext | None
    field: Field = "to"

    def __str__(self) -> str:
        return f"AMQP, {self.host}:{self.port}"

    @property
    def what(self) -> str:
        """What the URL names."""
        return f"{KINDS[self.field]} {self.name!r}" if self.name else "the default exchange"


def amqp_place(flow: Flow, field: Field = "to") -> AmqpPlace:
    """What a field of the flow names. Raises FlowError."""
    said, url = flow.said.amqp, flow.said.to if field == "to" else flow.said.from_
    kind = KINDS[field]
    say_url = f"say amqp://HOST/{kind.upper()} or amqps://HOST:PORT/{kind.upper()}"
    if bool(said.user) != bool(flow.amqp_password):
        raise FlowError(flow.name, "amqp", "a user comes with a password", "say both, or neither")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or PORTS[parts.scheme]
    except ValueError as error:
        raise FlowError(flow.name, field, f"{url!r}: {error}", say_url) from None
    if "@" in parts.netloc:
        raise FlowError(
            flow.name, field, "a URL has no password here", 'say amqp = { user = "ME", password = { env = "NAME" } }'
        )
    if not host or parts.query or parts.fragment:
        raise FlowError(flow.name, field, f"{url!r} names no host with {_a(kind)} alone", say_url)
    name = unquote(parts.path.removeprefix("/"))
    is_missing = not name and field == "from"
    if is_missing or "/" in parts.path.removeprefix("/") or len(name.encode()) > MOST_NAME_BYTES:
        reason = f"{name[:MOST_NAME_BYTES]!r} is no {kind}"
        raise FlowError(flow.name, field, reason, "say its name alone, / as %2F; amqp.vhost has the virtual host")
    tls = None
    if parts.scheme == "amqps":
        found = trusted(flow)
        tls = found if isinstance(found, ssl.SSLContext) else ssl.create_default_context()
    user, password = said.user or GUEST, flow.amqp_password or GUEST
    return AmqpPlace(host, port, name, said.vhost, user, password, tls, field)


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
