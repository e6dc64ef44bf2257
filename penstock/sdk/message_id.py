"""Message ids: the address of a store and a log_offset in it, in 32 hexadecimal digits (56 with an IPv6 address).

Four digits at the end are a checksum of the rest. It is against mistakes and no secret: whether a message begins at the
log_offset is for the store to say, which looks the place up in the topic's queue.
"""

from __future__ import annotations

import ipaddress
from binascii import crc_hqx
from dataclasses import dataclass, field

from penstock.sdk.errors import BadMessageId
from store.namespaces import DEFAULT, Namespace

_PORT_BYTES, _OFFSET_BYTES, _CHECK_BYTES = 2, 8, 2
_TAIL_BYTES = _PORT_BYTES + _OFFSET_BYTES + _CHECK_BYTES
_SIZES = (4 + _TAIL_BYTES, 16 + _TAIL_BYTES)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The address by which ids name a store. `packed`: 4 or 16 bytes of IP address, 2 of port.

    `names`: how the log has what a client of this store names.
    """

    packed: bytes
    names: Namespace = field(default=DEFAULT, compare=False)

    @classmethod
    def of(cls, ip: str, port: int) -> StorePlace:
        address = ipaddress.ip_address(ip.partition("%")[0])  # without a scope
        mapped = getattr(address, "ipv4_mapped", None)
        return cls((mapped or address).packed + port.to_bytes(_PORT_BYTES, "big"))

    @classmethod
    def parse(cls, text: str) -> StorePlace:
        """From `10.0.0.1:7700` or `[::1]:7700`. Raises ValueError."""
        ip, _, port = text.rpartition(":")
        return cls.of(ip.strip("[]"), int(port))

    def __str__(self) -> str:
        ip = ipaddress.ip_address(self.packed[:-_PORT_BYTES])
        port = int.from_bytes(self.packed[-_PORT_BYTES:], "big")
        return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"

    def message_id(self, log_offset: int) -> str:
        """The id of the message at a log_offset.

        >>> StorePlace.of("127.0.0.1", 7700).message_id(4096)
        '7F0000011E14000000000000100052A3'
        """
        data = self.packed + log_offset.to_bytes(_OFFSET_BYTES, "big")
        return (data + crc_hqx(data, 0).to_bytes(_CHECK_BYTES, "big")).hex().upper()


def parse_message_id(text: str) -> tuple[StorePlace, int]:
    """The store that an id names, and the log_offset. Raises BadMessageId."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in _SIZES or len(text) != 2 * len(data):
        raise BadMessageId(
            f"{text!r} is no message id: those have 32 or 56 hexadecimal digits; pass it on as it was given"
        )
    if crc_hqx(data[:-_CHECK_BYTES], 0).to_bytes(_CHECK_BYTES, "big") != data[-_CHECK_BYTES:]:
        raise BadMessageId(f"{text!r} is no message id: its last four digits do not fit the rest; it was changed")
    place, log_offset = data[: -_OFFSET_BYTES - _CHECK_BYTES], data[-_OFFSET_BYTES - _CHECK_BYTES : -_CHECK_BYTES]
    return StorePlace(place), int.from_bytes(log_offset, "big")
