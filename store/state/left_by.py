"""The client that left a will or a delayed message, as the log keeps it (LEFT_BY) until the message is due (ADR 37)."""

from __future__ import annotations

import msgspec


class LeftBy(msgspec.Struct, array_like=True, frozen=True):
    """`user` and `namespace` as in a Question; `login`: the name in the password file, if that let the user in.

    `key`: fingerprint of the key of the token that did. `own` has PUBLISH and RETAIN (below) for what a token or the
    connect hook allowed: these are not asked again, so what they said counts until the message is sent.
    `is_client`: a client of the store left it, and the store judges it.
    """

    user: str
    namespace: str = ""
    login: str | None = None
    key: bytes = b""
    own: int = 0
    is_client: bool = False


PUBLISH = 1
RETAIN = 2

encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(LeftBy)


def decode(data: bytes) -> LeftBy | None:
    """Decode LEFT_BY; None: it is damaged, or of a version that has another format."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_clients(data: bytes) -> bool:
    """Whether a client of the store left it."""
    left_by = decode(data)
    return left_by is not None and left_by.is_client
