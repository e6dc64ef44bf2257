"""Cursors of pages: opaque text that checks itself and belongs to one query."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from zlib import crc32

import msgspec

from penstock.console.errors import Problem

QUERY_BYTES = 8
CHECK_BYTES = 4
MOST_CHARACTERS = 8_192


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """Where a page goes on: `at` and `until` mean what the page's kind says; `after` is a name. `query`: of what."""

    query: bytes
    at: int = 0
    until: int = 0
    after: str = ""


def query_of(*parts: object) -> bytes:
    """Names a query in its cursors: a cursor of another one is refused."""
    return blake2b(repr(parts).encode(), digest_size=QUERY_BYTES).digest()


def text_of(cursor: Cursor) -> str:
    data = msgspec.msgpack.encode(cursor)
    return urlsafe_b64encode(crc32(data).to_bytes(CHECK_BYTES, "big") + data).decode().rstrip("=")


def parse_cursor(text: str, query: bytes) -> Cursor:
    """The cursor of a query. Raises Problem.

    >>> parse_cursor(text_of(Cursor(query_of("a"), 7)), query_of("a")).at
    7
    """
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        check, body = data[:CHECK_BYTES], data[CHECK_BYTES:]
        if crc32(body).to_bytes(CHECK_BYTES, "big") != check:
            raise ValueError
        cursor = msgspec.msgpack.decode(body, type=Cursor)
    except (ValueError, msgspec.DecodeError):
        raise Problem(
            400, "bad-cursor", "a cursor that this console did not give", "give `next` of the page before, unchanged"
        ) from None
    if cursor.query != query:
        raise Problem(
            400, "bad-cursor", "a cursor of another query", "give the other parameters as for the page before"
        )
    return cursor
