"""Addresses of stores, who can reach an address, and URLs for people: without user, password and query."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress

from notify.errors import NotifyError
from store.wire.client.address import WireAddress, split_store_url, store_ports

SHAPE = "tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH"
_PORT = r"(\[[0-9A-Fa-f:.]+\]|[^\s/:@,\[\]]+):"
PATTERN = rf"(?:tcp|tls)://{_PORT}(?P<port>\d{{1,5}})|unix:///.+"
"""The form of an address, for people and for the settings."""
CLUSTER_SHAPE = "tcp://HOST:PORT[,HOST:PORT], tls://HOST:PORT or unix:///PATH"
CLUSTER_PATTERN = rf"(?:tcp|tls)://{_PORT}(?P<port>\d{{1,5}})(,{_PORT}\d{{1,5}}){{0,15}}|unix:///.+"
"""The same where the stores of a cluster may be named."""
CREDENTIALS = re.compile(r"^((?:[a-z]+:/+)?).*@", re.DOTALL)
"""Up to the last `@`, so that a URL with a mistake, such as `redis:/user:pass/word@host`, shows no more."""
QUERY = re.compile(r"\?.+$", re.DOTALL)


class StoreAddressError(NotifyError):
    """The address of a store makes no sense."""


class StoreAddress(WireAddress):
    """The address at which a store listens: `tcp://HOST:PORT`, `tls://HOST:PORT` or `unix:///PATH`.

    To connect to, the stores of a cluster are one address: `tcp://HOST:PORT,HOST:PORT`, or a DNS name of all of them.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, url: str, any_port: bool = False) -> StoreAddress:
        """`any_port`: port 0 stands for any free one. Raises StoreAddressError."""
        with suppress(ValueError):  # a port that is no number
            parts = split_store_url(url)
            if parts.scheme == "unix" and parts.path:
                return cls(url, path=parts.path)
            if parts.scheme in ("tcp", "tls") and not (parts.path.strip("/") or parts.query or parts.fragment):
                ports = store_ports(parts.netloc)
                (host, port), *others = ports
                if all(each.port or any_port for each in ports):
                    return cls(url, host, port, is_tls=parts.scheme == "tls", others=tuple(others))
        raise StoreAddressError(f"{url}: not the address of a store; use {CLUSTER_SHAPE}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_credentials(url: str) -> str:
    """The URL without secrets; unchanged if it has none."""
    return QUERY.sub("?***", CREDENTIALS.sub(r"\1***@", url))
