"""The state of connections that travels to the process that replaces this one: plain data, and its form in msgpack.

A release that changes what a field means counts VERSION up. A field at the end may be added without that: who does not
know it ignores it, and who misses it has its default.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.mqtt.errors import GatewayError
from store.state.changes import SubscriptionState, WillState

VERSION = 1
MOST_CONNECTIONS = 250
"""In one batch: the system passes at most 253 descriptors with one message."""


class HandOverRefused(GatewayError):
    """The state of another process cannot be taken over."""


class Handed(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """Base of all parts of the state: an array of their fields."""


class HandedReader(Handed):
    """A place in a queue: `ref` is what the store calls it."""

    ref: int
    topic_filter: str
    qos: int
    position: int  # queue_offset
    reached: int  # log_offset, as the next two
    since: int = 0
    skip_qos0_before: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    subscription_id: int = 0
    only_live: bool = False


class HandedMessage(Handed):
    """A message that the session keeps itself; packet_id 0: it is not in flight so far."""

    packet_id: int
    log_offset: int
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...] = ()
    released: bool = False
    owed: bool = False
    lost: int = 0


class HandedDelivery(Handed):
    """A message of a group that is in flight."""

    packet_id: int
    serial: int
    queue_offset: int
    log_offset: int
    qos: int
    released: bool = False
    is_settled: bool = False


class HandedShare(Handed):
    """A shared subscription. `consumer`: the place of its consumer among those of the gateway."""

    subscription: SubscriptionState
    consumer: int
    sent_until: int = 0
    is_fresh: bool = False
    is_leaving: bool = False
    deliveries: list[HandedDelivery] = []


class HandedReplay(Handed):
    """History that goes on from log_offset `next` to `stop`."""

    subscription: SubscriptionState
    next: int
    stop: int
    start: int
    reached: int
    resumes: bool = False
    lost: int = 0


class HandedList(Handed):
    """Retained messages to be sent. `after`: the topic after which more of them are listed then, up to log_offset
    `end`; nil: that was all. `subscription` is then the one that they are for."""

    log_offsets: list[int]
    qos: int
    subscription_ids: tuple[int, ...]
    topic_filter: str
    after: str | None = None
    end: int = 0
    subscription: SubscriptionState | None = None


class HandedBacklog(Handed):
    """One item that is sent before anything from the queues; it has one of three kinds."""

    packet_id: int = 0  # of what is in flight, and not sent on this connection so far
    message: HandedMessage | None = None
    listed: HandedList | None = None


class HandedSession(Handed):
    """A session, as its gateway has it."""

    client_id: str
    expiry_s: int
    logged: bool
    frontier: int  # log_offset, as `acked`
    acked: int
    window: int
    blocked: bool = False
    inflight: bytes = b""  # as Inflight.dump()
    held: list[HandedMessage] = []
    readers: list[HandedReader] = []
    shares: list[HandedShare] = []
    given_back: dict[int, int] = {}
    received: list[int] = []
    skip: list[int] = []
    will: WillState | None = None
    replays: list[HandedReplay] = []
    backlog: list[HandedBacklog] = []


class HandedIdentity(Handed):
    """The identity of a client; `rules` as a token has them."""

    username: str = ""
    rules: list[dict[str, Any]] | None = None
    expires_ms: int | None = None
    verifier: str = ""
    namespace: str = ""
    login: str = ""
    key: bytes = b""
    owns_client_id: bool = False


class HandedConnection(Handed):
    """A connection. Without a session it has not sent a whole CONNECT so far."""

    listener: int  # place of its address in gateway.listen
    address: tuple[Any, ...] | None  # as accept() says it
    rest: bytes = b""  # came in, and not dealt with
    unsent: bytes = b""  # written, and not taken by the system
    silent_s: float = 0.0
    session: HandedSession | None = None
    version: int = 0
    keep_alive_s: float = 0.0
    max_packet_out: int = 0xFFFFFFFF
    ack_limit: int = 65_535
    alias_limit: int = 0
    aliases_out: list[tuple[bytes, int]] = []
    aliases_in: dict[int, str] = {}
    opened_ms: int = 0
    lost: int = 0
    is_bridge: bool = False
    keep_will: bool = True
    tells_problems: bool = True
    auth_method: str = ""
    identity: HandedIdentity | None = None
    namespace: str = ""


class HandedBatch(Handed):
    """Connections whose descriptors come in this order."""

    version: int
    connections: list[HandedConnection]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HandedBatch).decode


def encode_batch(connections: list[HandedConnection]) -> bytes:
    """The bytes of some connections, at most MOST_CONNECTIONS."""
    assert len(connections) <= MOST_CONNECTIONS
    return _encode(HandedBatch(version=VERSION, connections=connections))


def decode_batch(data: bytes) -> list[HandedConnection]:
    """The connections that encode_batch() encoded. Raises HandOverRefused."""
    try:
        check_version(version_of(data))
        batch = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HandOverRefused(f"the state of connections cannot be read: {error}") from error
    if len(batch.connections) > MOST_CONNECTIONS:
        raise HandOverRefused(f"{len(batch.connections)} connections in one batch, more than {MOST_CONNECTIONS}")
    return batch.connections


def version_of(data: bytes) -> int:
    """The first field of a state. Raises msgspec.MsgspecError if that is no number."""
    fields = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
    return msgspec.msgpack.decode(fields[0], type=int) if fields else 0


def check_version(version: int) -> None:
    """Raises HandOverRefused."""
    if version != VERSION:
        raise HandOverRefused(f"the state has version {version}, and this release knows version {VERSION}")
