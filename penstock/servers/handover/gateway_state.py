"""What a gateway has besides connections, for the process that replaces it."""

from __future__ import annotations

import msgspec

from gateway.handover.state import VERSION, HandOverRefused, check_version, version_of
from notify.remote.handed import HandedPart, HandedStore


class HandedGateway(HandedPart):
    """`name`: under which the store knows the gateway; `listen`: its addresses, in their order."""

    version: int
    release: str
    name: str
    listen: list[str]
    store: HandedStore


class HandedListener(HandedPart):
    """The address in gateway.listen whose sockets come with this."""

    place: int


encode_gateway = msgspec.msgpack.Encoder().encode
_decode_gateway = msgspec.msgpack.Decoder(HandedGateway).decode
decode_listener = msgspec.msgpack.Decoder(HandedListener).decode


def decode_gateway(data: bytes) -> HandedGateway:
    """Raises HandOverRefused for the state of another version, and for what is none."""
    try:
        check_version(version_of(data))
        return _decode_gateway(data)
    except msgspec.MsgspecError as error:
        raise HandOverRefused(f"the state of the gateway (version {VERSION}) cannot be read: {error}") from error
