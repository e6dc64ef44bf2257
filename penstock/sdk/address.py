"""Where a store is: `penstock://HOST:PORT`, with TLS `penstocks://HOST:PORT`, on the same machine `unix:///PATH`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.sdk.errors import AddressError

DEFAULT_PORT = 7700


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address: either `path`, or `host` and `port`."""

    url: str
    host: str = ""
    port: int = 0
    path: str = ""
    is_tls: bool = False

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
