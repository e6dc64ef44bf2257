"""The address of a store, or of the stores of a cluster, as a link uses it; and in which order it tries them. No I/O.

Each user of the client parses its own URLs into one.
"""

from __future__ import annotations

import ipaddress
import re
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit


class StorePort(NamedTuple):
    """A host, by name or IP address, and the TCP port of a store there."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default: int | None = None) -> StorePort:
        """HOST:PORT; without a port `default` holds, if there is one. Raises ValueError."""
        parts = urlsplit(f"//{text}")
        port = default if parts.port is None else parts.port
        if not parts.hostname or port is None or parts.netloc != text or "@" in text:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(parts.hostname, port)

    def __str__(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class WireAddress:
    """A parsed URL: the `path` of a Unix socket, or `host` and `port`, with `others` of the same cluster."""

    url: str
    host: str = ""
    port: int = 0
    path: str = ""
    is_tls: bool = False
    others: tuple[StorePort, ...] = ()

    @property
    def ports(self) -> tuple[StorePort, ...]:
        """All of TCP."""
        return () if self.path else (StorePort(self.host, self.port), *self.others)


def store_ports(netloc: str, default: int | None = None) -> list[StorePort]:
    """HOST:PORT, or several with commas in between. Raises ValueError."""
    return [StorePort.parse(each, default) for each in netloc.split(",")]


def split_store_url(url: str) -> SplitResult:
    """Like urlsplit(), which in some releases of Python refuses an IPv6 address after a host. Raises ValueError."""
    scheme, is_url, rest = url.partition("://")
    if not is_url or "," not in rest:
        return urlsplit(url)
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    return urlsplit(f"{scheme}://{rest[len(netloc) :]}")._replace(netloc=netloc)


MOST_NAMES: Final = 16
"""Names of leaders that are looked up in one round."""

AddressInfos = Iterable[tuple[int, int, int, str, tuple[Any, ...]]]


class Endpoint(NamedTuple):
    """An IP address to connect to. `host`: the name that a certificate there should have."""

    host: str
    ip: str
    port: int

    def __str__(self) -> str:
        return str(StorePort(self.ip, self.port))


def endpoints_of(place: StorePort, infos: AddressInfos) -> list[Endpoint]:
    """The endpoints that getaddrinfo() found."""
    return [Endpoint(place.host, str(address[0]), place.port) for *_, address in infos]


def endpoint_of(place: StorePort) -> Endpoint | None:
    """The endpoint of a place; None: its host is a name, which has to be looked up."""
    try:
        ipaddress.ip_address(place.host)
    except ValueError:
        return None
    return Endpoint(place.host, place.host, place.port)


class ConnectionRound:
    """The endpoints of a store or of a cluster, each to be tried once; the leader next, where a store names it."""

    def __init__(self, found: Iterable[Endpoint] = (), silent: Collection[Endpoint] = ()) -> None:
        """`silent`: those that said nothing lately; they come last, also if a store says that one of them leads."""
        self._silent = {each[1:] for each in silent}
        self._left = deque(sorted(dict.fromkeys(found), key=self._is_silent))
        self._known = list(self._left)
        self._tried: set[tuple[str, int]] = set()
        self._looked_up: set[StorePort] = set()
        self._to_look_up: StorePort | None = None

    @property
    def is_over(self) -> bool:
        return not self._left and self._to_look_up is None

    def to_look_up(self) -> StorePort | None:
        """The leader of which only the name is known, once: before next(), what its name says goes to found()."""
        place, self._to_look_up = self._to_look_up, None
        return place

    def next(self) -> Endpoint:
        """The endpoint to try now; not for a round that is over."""
        endpoint = self._left.popleft()
        self._tried.add(endpoint[1:])
        return endpoint

    def leader(self, address: str) -> None:
        """A store said that the one at this HOST:PORT leads. One that was tried in this round is left to the next."""
        try:
            place = StorePort.parse(address)
        except ValueError:
            return
        named = endpoint_of(place)
        if named is not None:
            host = next((each.host for each in self._known if each[1:] == named[1:]), named.host)
            self.found([named._replace(host=host)])
        elif known := [each for each in self._known if (each.host, each.port) == place]:
            self.found(known)
        elif place not in self._looked_up and len(self._looked_up) < MOST_NAMES:
            self._looked_up.add(place)
            self._to_look_up = place

    def found(self, endpoints: Iterable[Endpoint]) -> None:
        """Where the leader is: these are tried next."""
        first = [each for each in endpoints if each[1:] not in self._tried]
        ports = {each[1:] for each in first}
        others = [each for each in self._left if each[1:] not in ports]
        self._left = deque(sorted((*first, *others), key=self._is_silent))

    def _is_silent(self, endpoint: Endpoint) -> bool:
        return endpoint[1:] in self._silent
