"""Where a store is: `penstock://HOST:PORT`, with TLS `penstocks://HOST:PORT`, on the same machine `unix:///PATH`.

The stores of a cluster are one address: `penstock://HOST:PORT,HOST:PORT`, or a DNS name of all of them.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.sdk.errors import AddressError
from store.wire.client.address import WireAddress, split_store_url, store_ports

DEFAULT_PORT = 7700


class Address(WireAddress):
    """The address of a store as a client writes it."""

    __slots__ = ()

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises AddressError.

        >>> Address.parse("penstock://localhost").port
        7700
        >>> Address.parse("penstock://a,b:7701").ports
        (StorePort(host='a', port=7700), StorePort(host='b', port=7701))
        """
        with suppress(ValueError):  # a host or port that is none
            parts = split_store_url(url)
            if parts.scheme == "unix" and parts.path and not parts.netloc:
                return cls(url, path=parts.path)
            is_plain = not (parts.path.strip("/") or parts.query or parts.fragment)
            if parts.scheme in ("penstock", "penstocks") and is_plain:
                (host, port), *others = store_ports(parts.netloc, DEFAULT_PORT)
                return cls(url, host, port, is_tls=parts.scheme == "penstocks", others=tuple(others))
        raise AddressError(
            f"{url}: not the address of a store; use penstock://HOST:PORT[,HOST:PORT], penstocks://HOST:PORT (TLS) or "
            "unix:///PATH; a token goes into token="
        )
