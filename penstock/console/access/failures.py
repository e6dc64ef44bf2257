"""Failed logins by address: whoever guesses has to wait."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque

WINDOW_S = 60.0
MOST_ADDRESSES = 10_000
IPV6_NETWORK_BITS = 64


class FailedLogins:
    """Remembers the failures of the last minute, of the 10,000 addresses that failed last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self.total = 0

    def wait_s(self, address: str, now_s: float) -> float:
        """How long this address has to wait before its next login is looked at; 0: not at all."""
        failures = self._failures.get(network_of(address))
        if failures is None:
            return 0.0
        while failures and now_s - failures[0] > WINDOW_S:
            failures.popleft()
        return failures[0] + WINDOW_S - now_s if len(failures) >= self._most else 0.0

    def failed(self, address: str, now_s: float) -> None:
        self.total += 1
        network = network_of(address)
        self._failures.setdefault(network, deque(maxlen=self._most)).append(now_s)
        self._failures.move_to_end(network)
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        self._failures.pop(network_of(address), None)


def network_of(address: str) -> str:
    """The address, or the /64 network of an IPv6 one: whoever has one address there has all.

    >>> network_of("192.0.2.7"), network_of("2001:db8::7")
    ('192.0.2.7', '2001:db8::/64')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6:
        mapped = found.ipv4_mapped
        return str(mapped or ipaddress.ip_network((found, IPV6_NETWORK_BITS), strict=False))
    return str(found)
