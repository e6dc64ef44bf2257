"""The units by which clients' addresses are counted, limited and banned."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

IPV6_PREFIX = 64
"""Bits of the prefix of one IPv6 subscriber."""
REMEMBERED_ADDRESSES = 16_384

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(REMEMBERED_ADDRESSES)
def parse_address(text: str) -> Address | None:
    """Parse an IP address; None for other text, as of a Unix socket. An IPv4 address in IPv6 form becomes IPv4."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(REMEMBERED_ADDRESSES)
def source_of(text: str) -> str:
    """An IPv4 address itself, the /64 network of an IPv6 address; empty for other text."""
    address = parse_address(text)
    if address is None:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))
    return str(address)


@lru_cache(REMEMBERED_ADDRESSES)
def network_of(source: str) -> str:
    """The neighbourhood of a source: the /24 of an IPv4 address, the /48 of an IPv6 network."""
    address = parse_address(source.partition("/")[0])
    if address is None:
        return ""
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


def is_loopback(text: str) -> bool:
    """Whether a client is on this machine: loopback addresses, and text that is no IP address (a Unix socket)."""
    address = parse_address(text.partition("/")[0])
    return address is None or address.is_loopback
