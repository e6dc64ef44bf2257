"""What a gateway has besides connections, for the process that replaces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from gateway.handover.state import VERSION, HandOverRefused, check_version, version_of
from notify.handed import HandedPart
from notify.local.handed import HandedLocalStore
from notify.remote.handed import HandedStore

T = TypeVar("T")


class HandedGateway(HandedPart):
    """`name`: under which the store knows the gateway; `listen`: its addresses, in their order."""

    version: int
    release: str
    name: str
    listen: list[str]
    store: HandedStore


class HandedServer(HandedPart):
    """Of `penstock serve`. `data`: its data folder, absolute, whose lock is free now; `end`: the log_offset at which
    its log ended then.
    """

    version: int
    release: str
    data: str
    end: int
    listen: list[str]
    store: HandedLocalStore


class HandedListener(HandedPart):
    """The address in gateway.listen whose sockets come with this."""

    place: int


encode_state = msgspec.msgpack.Encoder().encode
_decode_gateway = msgspec.msgpack.Decoder(HandedGateway).decode
_decode_server = msgspec.msgpack.Decoder(HandedServer).decode
decode_listener = msgspec.msgpack.Decoder(HandedListener).decode


def decode_gateway(data: bytes) -> HandedGateway:
    """Raises HandOverRefused for the state of another version, and for what is none."""
    return _decoded(data, _decode_gateway)


def decode_server(data: bytes) -> HandedServer:
    """As decode_gateway()."""
    return _decoded(data, _decode_server)


def _decoded(data: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        check_version(version_of(data))
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HandOverRefused(f"the state of the gateway (version {VERSION}) cannot be read: {error}") from error
