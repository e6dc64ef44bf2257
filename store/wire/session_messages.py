"""Messages between a store and its gateways about sessions."""

from typing import Annotated

from msgspec import Meta

from store.wire.base import Items, LogOffset, Name, Positive, TopicFilter, WireMessage

Bytes = Annotated[bytes, Meta(max_length=65_535)]
Left = tuple[Bytes, Bytes, Name, Annotated[int, Meta(ge=0, le=2)], bool]


class Claim(WireMessage, frozen=True):
    """A client connected: this gateway asks for its session. `clean_start` forgets what was there.

    `user` wants it; empty: an anonymous client; nil: the gateway is older than ownership and is not judged. A session
    without an owner is for a user whose permissions allow all filters (`reads_all`), or each that it holds (`reads`).
    `adopts_anonymous`: this gateway lets no anonymous clients in, so what they left has no owner. `address`: the
    client's, for operators. `counts`: a new session counts for the user, or for anonymous clients together.
    """

    client_id: Name
    clean_start: bool
    user: Name | None = None
    reads_all: bool = False
    reads: Annotated[tuple[TopicFilter, ...], Items] = ()
    adopts_anonymous: bool = False
    address: Annotated[str, Meta(max_length=256)] = ""
    counts: bool = False


class Claimed(WireMessage, frozen=True):
    """The session is the gateway's; `session` is store.state.sessions.SessionState in msgpack (empty: new).

    What it says is true at `log_end`, where the log ends.
    """

    session: bytes
    log_end: LogOffset


class ClaimRefused(WireMessage, frozen=True):
    """Another user owns the session. With `filters` it has no owner and holds these: claim again if all are allowed.
    With `quota` it is new, and its user has as many as it may have: `quota` is the text for the client."""

    filters: Annotated[list[TopicFilter], Items]
    quota: str = ""


class Release(WireMessage, frozen=True):
    """The client left, or TakenOver asked for it. Where the log knows the session, SESSION_CLOSED says so instead."""

    client_id: Name


class TakenOver(WireMessage, frozen=True):
    """Another gateway claimed the session: the one that has it ends the client's connection and lets go."""

    client_id: Name


class Holds(WireMessage, frozen=True):
    """To a store that was restarted: connections whose sessions the log does not know. TakenOver: another has one.

    `users` are those of the connections, in the same order; an older gateway does not say.
    """

    client_ids: Annotated[list[Name], Items]
    users: Annotated[tuple[Name, ...], Items] = ()


class Judge(WireMessage, frozen=True):
    """May these messages be sent now? `number` is that of the question.

    Wills and delayed messages that are due: of each its LEFT_BY, client_id, topic, QoS and whether it is retained.
    """

    number: Positive
    messages: Annotated[list[Left], Items]


class Judged(WireMessage, frozen=True):
    """The answer for each message of a Judge: yes, no, or not known now (nil). Empty: this gateway judges nothing."""

    number: Positive
    allowed: Annotated[list[bool | None], Items]
