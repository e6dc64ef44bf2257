"""Bans of networks, users and client identifiers, each with its end and its reason. No I/O, no clock.

A ban refuses new connections; it does not end open ones.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from gateway.auth.errors import AuthError
from gateway.auth.sources import REMEMBERED_ADDRESSES, Address, Network, parse_address
from store.wire.operator_messages import BanInfo

BanKind = Literal["address", "user", "client_id"]
BAN_KINDS: tuple[BanKind, ...] = get_args(BanKind)
MOST_BANS = 10_000
MOST_REASON_CHARACTERS = 200

_Place = tuple[int, int, int]  # IP version, bits of the prefix, the prefix


@dataclass(slots=True)
class Ban:
    """One ban. It ends at `until_ms`."""

    kind: BanKind
    value: str
    """An IP address or network (192.0.2.0/24), a user name, or a client identifier."""
    until_ms: int | None
    """Unix time in ms; None: until it is lifted."""
    reason: str
    automatic: bool = False
    refused: int = 0
    """Connections that this gateway refused because of the ban."""

    def holds(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


class Bans:
    """Owner of a gateway's bans, MOST_BANS at most."""

    def __init__(self, tell_automatic: Callable[[Ban], object] = lambda _: None, most: int = MOST_BANS) -> None:
        """`tell_automatic` is called with each ban that this gateway makes, so that other gateways get it, too."""
        self._most = most
        self._bans: dict[tuple[BanKind, str], Ban] = {}
        self._networks: dict[_Place, Ban] = {}
        self._prefixes: Counter[tuple[int, int]] = Counter()  # number of bans by (IP version, bits)
        self.refused: Counter[str] = Counter(dict.fromkeys(BAN_KINDS, 0))
        self._tell_automatic = tell_automatic
        self._is_told = False  # what is set comes from the store

    def __len__(self) -> int:
        return len(self._bans)

    def counts(self) -> dict[str, int]:
        """Number of bans by kind."""
        found = Counter(kind for kind, _ in self._bans)
        return {kind: found[kind] for kind in BAN_KINDS}

    def ban(self, kind: BanKind, value: str, until_ms: int | None, reason: str, automatic: bool = False) -> Ban:
        """Add a ban, or replace the one with the same value. Raises AuthError."""
        value = normal(kind, value)
        old = self._bans.get((kind, value))
        if old is None and len(self._bans) >= self._most:
            self._make_room()
        ban = Ban(kind, value, until_ms, reason[:MOST_REASON_CHARACTERS], automatic, old.refused if old else 0)
        if old is not None:
            self._remove(old)
        self._bans[kind, value] = ban
        if kind == "address":
            place = _place(ipaddress.ip_network(value))
            self._networks[place] = ban
            self._prefixes[place[:2]] += 1
        if automatic and not self._is_told:
            self._tell_automatic(ban)
        return ban

    def take(self, bans: Iterable[BanInfo], lifted: Iterable[tuple[BanKind, str]]) -> None:
        """The store's bans were set and lifted. Raises AuthError."""
        self._is_told = True
        try:
            for kind, value in lifted:
                self.lift(kind, value)
            for each in bans:
                self.ban(each.kind, each.value, each.until_ms or None, each.reason, each.automatic)
        finally:
            self._is_told = False

    def lift(self, kind: BanKind, value: str) -> bool:
        """Lift a ban. False: there is none with this value. Raises AuthError."""
        ban = self._bans.get((kind, normal(kind, value)))
        if ban is not None:
            self._remove(ban)
        return ban is not None

    def listing(self, now_ms: int) -> list[Ban]:
        """The bans in force, oldest first."""
        for ban in [ban for ban in self._bans.values() if not ban.holds(now_ms)]:
            self._remove(ban)
        return list(self._bans.values())

    def find(self, address: str, user: str, client_id: str, now_ms: int) -> Ban | None:
        """The ban that refuses a client, or None; empty arguments are not looked up."""
        if not self._bans:
            return None
        found = self._of_address(address, now_ms)
        for kind, value in (("user", user), ("client_id", client_id)):
            found = found or (self._holding(self._bans.get((kind, value)), now_ms) if value else None)  # type: ignore[arg-type]
        return found

    def refuses(self, address: str, user: str, client_id: str, now_ms: int) -> Ban | None:
        """Like find(), for a client that is then refused: counts it."""
        ban = self.find(address, user, client_id, now_ms)
        if ban is not None:
            ban.refused += 1
            self.refused[ban.kind] += 1
        return ban

    def _of_address(self, text: str, now_ms: int) -> Ban | None:
        address = parse_address(text) if self._prefixes else None
        if address is None:
            return None
        version, number, bits = address.version, int(address), address.max_prefixlen
        for of_version, prefix in list(self._prefixes):
            if of_version == version:
                found = self._networks.get((version, prefix, number >> (bits - prefix)))
                if (holding := self._holding(found, now_ms)) is not None:
                    return holding
        return None

    def _holding(self, ban: Ban | None, now_ms: int) -> Ban | None:
        if ban is None or ban.holds(now_ms):
            return ban
        self._remove(ban)
        return None

    def _make_room(self) -> None:
        """Remove the oldest automatic ban; bans of operators stay. Raises AuthError if there is no automatic one."""
        oldest = next((ban for ban in self._bans.values() if ban.automatic), None)
        if oldest is None:
            raise AuthError(f"there are {self._most} bans already; lift some, or ban a network instead of addresses")
        self._remove(oldest)

    def _remove(self, ban: Ban) -> None:
        del self._bans[ban.kind, ban.value]
        if ban.kind == "address":
            place = _place(ipaddress.ip_network(ban.value))
            del self._networks[place]
            self._prefixes[place[:2]] -= 1
            self._prefixes += Counter()  # drop keys with a count of 0


def normal(kind: BanKind, value: str) -> str:
    """The canonical spelling of a ban's value. Raises AuthError."""
    if kind not in BAN_KINDS:
        raise AuthError(f"{kind!r}: a ban is of one of {', '.join(BAN_KINDS)}")
    if not value:
        raise AuthError("a ban needs an address, a user or a client identifier")
    return _network(value) if kind == "address" else value


@lru_cache(REMEMBERED_ADDRESSES)
def _network(text: str) -> str:
    try:
        address: Address | None = parse_address(text)
        network: Network = ipaddress.ip_network(text if address is None else address, strict=False)
    except ValueError:
        raise AuthError(f"{text!r} is no IP address or network, as 192.0.2.7 or 2001:db8::/64") from None
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def _place(network: Network) -> _Place:
    bits = network.max_prefixlen - network.prefixlen
    return network.version, network.prefixlen, int(network.network_address) >> bits
