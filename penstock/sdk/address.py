"""Where a store is: `penstock://HOST:PORT`, with TLS `penstocks://HOST:PORT`, on the same machine `unix:///PATH`."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

from penstock.sdk.errors import AddressError
from store.wire.client.address import WireAddress

DEFAULT_PORT = 7700


class Address(WireAddress):
    """The address of a store as a client writes it."""

    __slots__ = ()

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises AddressError.

        >>> Address.parse("penstock://localhost").port
        7700
        """
        parts = urlsplit(url)
        with suppress(ValueError):  # a port that is no number
            if parts.scheme == "unix" and parts.path and not parts.netloc:
                return cls(url, path=parts.path)
            is_plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
            if parts.scheme in ("penstock", "penstocks") and parts.hostname and is_plain:
                return cls(url, parts.hostname, parts.port or DEFAULT_PORT, is_tls=parts.scheme == "penstocks")
        raise AddressError(
            f"{url}: not the address of a store; use penstock://HOST:PORT, penstocks://HOST:PORT (TLS) or "
            "unix:///PATH; a token goes into token="
        )
