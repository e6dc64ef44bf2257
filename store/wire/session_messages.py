"""What a store and its gateways tell each other of sessions."""

from typing import Annotated

from msgspec import Meta

from store.wire.base import Items, LogOffset, Message, Name, TopicFilter


class Claim(Message, frozen=True):
    """A client connected: its session is to be this gateway's. `clean_start` forgets what was there.

    `user` wants it; empty: an anonymous client; nil: the gateway is older than ownership and is not judged. A session
    without an owner is for a user whose permissions allow all filters (`reads_all`), or each that it holds (`reads`).
    `adopts_anonymous`: this gateway lets no anonymous clients in, so what they left has no owner. `address`: the
    client's, for operators.
    """

    client_id: Name
    clean_start: bool
    user: Name | None = None
    reads_all: bool = False
    reads: Annotated[tuple[TopicFilter, ...], Items] = ()
    adopts_anonymous: bool = False
    address: Annotated[str, Meta(max_length=256)] = ""


class Claimed(Message, frozen=True):
    """The session is the gateway's; `session` is store.sessions.SessionState in msgpack (empty: new).

    What it says is true at `log_end`, where the log ends.
    """

    session: bytes
    log_end: LogOffset


class ClaimRefused(Message, frozen=True):
    """Another user owns the session. With `filters` it has no owner and holds these: claim again if all are allowed."""

    filters: Annotated[list[TopicFilter], Items]


class Release(Message, frozen=True):
    """The client left, or TakenOver asked for it. Where the log knows the session, SESSION_CLOSED says so instead."""

    client_id: Name


class TakenOver(Message, frozen=True):
    """Another gateway claimed the session: the one that has it ends the client's connection and lets go."""

    client_id: Name


class Holds(Message, frozen=True):
    """To a store that was restarted: connections whose sessions the log does not know. TakenOver: another has one.

    `users` are those of the connections, in the same order; an older gateway does not say.
    """

    client_ids: Annotated[list[Name], Items]
    users: Annotated[tuple[Name, ...], Items] = ()
