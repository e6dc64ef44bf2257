"""Handles: how a program that asks by HTTP names a message that it was handed. No I/O, and nothing is kept.

A handle has the serial of the lease and the message's place in the group's queue, which is all that the store needs to
know whether it still counts. A seal ties both to one log, one user, one group and one filter, so that a handle that was
meant for another is refused before the store is asked. Whoever knows the log's identity could make one: a client of the
store, which may settle the messages of its groups by their serials anyway.

version 1 | serial 8 | queue_offset 8 | seal 12 (BLAKE2b), as base64url without padding: 39 characters
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import NamedTuple

from penstock.console.errors import ConsoleError

_PLACE = Struct(">BQQ")
VERSION = 1
SEAL_BYTES = 12
HANDLE_CHARACTERS = 39
HANDLE_BYTES = _PLACE.size + SEAL_BYTES


class BadHandle(ConsoleError):
    """A text that is no handle."""


class ForeignHandle(ConsoleError):
    """A handle that was made for another user, group, filter or log."""


class DeliveryPlace(NamedTuple):
    """A message as the store handed it out."""

    serial: int
    queue_offset: int


class HandleSeal:
    """Makes and checks the handles of one user in one group."""

    def __init__(self, log_identity: bytes, account: tuple[str, str], group: tuple[str, str]) -> None:
        """`account`: namespace and user; `group`: its name and filter, as the log has them."""
        parts = json.dumps([log_identity.hex(), *account, *group]).encode()
        self._key = blake2b(parts, person=b"penstock handle").digest()

    def _sealed(self, place: bytes) -> bytes:
        return blake2b(place, digest_size=SEAL_BYTES, key=self._key).digest()

    def handle(self, place: DeliveryPlace) -> str:
        packed = _PLACE.pack(VERSION, *place)
        return urlsafe_b64encode(packed + self._sealed(packed)).decode().rstrip("=")

    def place(self, handle: str) -> DeliveryPlace:
        """Raises BadHandle, ForeignHandle."""
        try:
            data = urlsafe_b64decode(handle.encode("ascii") + b"=") if len(handle) == HANDLE_CHARACTERS else b""
        except (Error, UnicodeEncodeError):
            data = b""
        if len(data) != HANDLE_BYTES or data[0] != VERSION:
            raise BadHandle(f"{handle[:50]!r} is no handle")
        packed = data[: _PLACE.size]
        if not compare_digest(self._sealed(packed), data[_PLACE.size :]):
            raise ForeignHandle(f"{handle!r} is not of this group, filter and user")
        _, serial, queue_offset = _PLACE.unpack(packed)
        return DeliveryPlace(serial, queue_offset)
