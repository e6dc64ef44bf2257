"""Failed logins by address: a client that guesses passwords has to wait."""

from __future__ import annotations

from collections import OrderedDict, deque

from gateway.auth.sources import source_of

WINDOW_S = 60.0
MOST_ADDRESSES = 10_000


class FailedLogins:
    """Remembers the failures of the last minute, of the last 10,000 sources: IPv4 addresses and IPv6 /64 networks."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """How long this address has to wait before its next login is looked at; 0: not at all."""
        failures = self._failures.get(source_of(address))
        if failures is None:
            return 0.0
        while failures and now_s - failures[0] > WINDOW_S:
            failures.popleft()
        return failures[0] + WINDOW_S - now_s if len(failures) >= self._most else 0.0

    def failed(self, address: str, now_s: float) -> None:
        network = source_of(address)
        self._failures.setdefault(network, deque(maxlen=self._most)).append(now_s)
        self._failures.move_to_end(network)
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)
