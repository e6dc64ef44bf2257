"""Counts failed logins by address, by user, and by both. No I/O.

Counts run out evenly: a count of N is 0 again after failure_window_s, if N is its limit. A login refused without a look
at its password counts for its address as well, so an address that goes on is banned.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, floor
from typing import Protocol

from gateway.auth.identity import UNKNOWN, Identity, LoginRefused, Verdict
from gateway.auth.settings import AuthSettings
from gateway.auth.sources import is_loopback
from gateway.auth.under_way import UnderWay
from gateway.mqtt.reason_codes import ReasonCode
from store.wire.operator_messages import LoginEnd

MOST_COUNTED = 20_000
"""Entries of each kind of count, and of users with a successful login; the one changed longest ago is dropped first."""
SLOW_AFTER = 1
"""Failures of an address after which its attempts wait after those of others."""
USER_WINDOW_S = 3_600
LIMITS = ("user_at_address", "address", "user")
LONG_NAME_CHARACTERS = 256


@dataclass(slots=True)
class _Count:
    """A number that runs out evenly: `most` of it in `window_s`."""

    level: float
    at_s: float


class Counts:
    """Counts by key, MOST_COUNTED at most. A limit of 0 means no limit."""

    def __init__(self, most: int, window_s: float) -> None:
        self.most = most
        self.window_s = window_s
        self._counts: OrderedDict[Hashable, _Count] = OrderedDict()

    def level(self, key: Hashable, now_s: float) -> float:
        count = self._counts.get(key)
        if count is None:
            return 0.0
        count.level = max(0.0, count.level - (now_s - count.at_s) * self.most / self.window_s)
        count.at_s = now_s
        if not count.level:
            del self._counts[key]
        return count.level

    def is_reached(self, key: Hashable, now_s: float) -> bool:
        return self.most > 0 and self.level(key, now_s) > self.most - 1

    def add(self, key: Hashable, now_s: float) -> None:
        level = self.level(key, now_s)
        self._counts[key] = _Count(min(level + 1, self.most), now_s)
        self._counts.move_to_end(key)
        if len(self._counts) > MOST_COUNTED:
            self._counts.popitem(last=False)

    def forget(self, key: Hashable) -> bool:
        """Delete a count. Returns False if there was none."""
        return self._counts.pop(key, None) is not None


class LoginListener(Protocol):
    """A listener for how logins end in this process."""

    def ended(self, end: LoginEnd) -> None:
        """A login changed a count."""


class Attempts:
    """Owner of these counts, in one process. SharedAttempts tells those of other processes."""

    def __init__(
        self,
        settings: AuthSettings,
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], object] = lambda then: then(),
    ) -> None:
        """`clock` is in seconds, and monotonic; `soon` runs a function in a later turn of the loop."""
        window_s = settings.failure_window_s
        self._settings = settings
        self._clock = clock
        self._of_pair = Counts(settings.max_failures, window_s)
        self._of_address = Counts(settings.max_failures_of_address, window_s)
        self._of_user = Counts(settings.max_failures_of_user, USER_WINDOW_S)
        self._slow = Counts(SLOW_AFTER, window_s)
        self._until_ban = Counts(settings.ban_failures, window_s)
        self._right: OrderedDict[int, None] = OrderedDict()
        self.under_way = UnderWay(self.room, soon)
        self._listener: LoginListener | None = None
        self.limited: Counter[str] = Counter(dict.fromkeys(LIMITS, 0))
        self.failures = 0

    def listen(self, listener: LoginListener) -> None:
        """`listener` is told of each login in this process that changes a count from now on."""
        self._listener = listener

    def _ended(self, end: LoginEnd) -> None:
        if self._listener is not None:
            self._listener.ended(end)

    def refuses(self, source: str, user: str) -> LoginRefused | None:
        """The refusal of an attempt whose password is not looked at, or None."""
        now_s, user = self._clock(), _short(user)
        reached = (by for by, each, key in self._limits(source, user) if each.is_reached(key, now_s))
        by = next(reached, None)
        if by is None:
            return None
        self.limited[by] += 1
        return LoginRefused(
            "too many failed logins; try again later", ReasonCode.CONNECTION_RATE_EXCEEDED, is_failure=True
        )

    def _limits(self, source: str, user: str) -> list[tuple[str, Counts, Hashable]]:
        """The limits that apply to an attempt: name, counts, and the key of the attempt's count."""
        limits: list[tuple[str, Counts, Hashable]] = [("user_at_address", self._of_pair, (source, user))]
        if self._is_counted(source):
            limits.append(("address", self._of_address, source))
        if hash((source, user)) not in self._right:
            limits.append(("user", self._of_user, user))
        return limits

    def room(self, source: str, user: str) -> dict[Hashable, int]:
        """Attempts that may still fail before a limit is reached, for each limit that applies to an attempt."""
        now_s, limits = self._clock(), self._limits(source, _short(user))
        return {(by, key): floor(each.most - each.level(key, now_s)) for by, each, key in limits if each.most}

    def note(self, source: str, user: str, verdict: Verdict) -> bool:
        """Count how a login ended. True: its address must be banned now."""
        if isinstance(verdict, Identity):
            if verdict.username:
                self.succeeded(source, user)
            return False
        refused = verdict or UNKNOWN
        return refused.is_failure and self.failed(source, user, refused)

    def retry_s(self, source: str, user: str) -> int:
        """Seconds until an attempt that is refused now would be checked again."""
        now_s = self._clock()
        waits = [
            (each.level(key, now_s) - each.most + 1) * each.window_s / each.most
            for _, each, key in self._limits(source, _short(user))
            if each.most
        ]
        return max(1, ceil(max(waits, default=0)))

    def is_slow(self, source: str) -> bool:
        """Whether attempts of other addresses come first."""
        return self._slow.is_reached(source, self._clock())

    def failed(self, source: str, user: str, refused: LoginRefused) -> bool:
        """Count a failed or refused login. True: its address must be banned now."""
        self.failures += 1
        user, is_heard = _short(user), refused.reason_code is not ReasonCode.CONNECTION_RATE_EXCEEDED
        self._ended(LoginEnd(source, user, "wrong" if is_heard else "unheard"))
        must_be_banned = self._add(source, user, is_heard)
        if must_be_banned:
            self._until_ban.forget(source)
        return must_be_banned

    def take(self, end: LoginEnd) -> None:
        """Count a login of another process. The next failed one of this process makes the ban that is due by it."""
        if end.how == "right":
            self._clear(end.source, end.user)
        else:
            self._add(end.source, end.user, end.how == "wrong")

    def _add(self, source: str, user: str, is_heard: bool) -> bool:
        now_s = self._clock()
        if is_heard:
            for counts, key in (
                (self._of_pair, (source, user)),
                (self._of_address, source),
                (self._of_user, user),
                (self._slow, source),
            ):
                if counts.most:
                    counts.add(key, now_s)
        if not self._settings.ban_failures or not self._is_counted(source):
            return False
        self._until_ban.add(source, now_s)
        return self._until_ban.is_reached(source, now_s)

    def succeeded(self, source: str, user: str) -> None:
        """Reset the counts of an address and a user after a success: its failures are some among many clients'."""
        user = _short(user)
        if self._clear(source, user):
            self._ended(LoginEnd(source, user, "right"))

    def _clear(self, source: str, user: str) -> bool:
        """Delete the counts of a source and user. Returns True if that changes anything for later logins."""
        found = [counts.forget(source) for counts in (self._of_address, self._slow, self._until_ban)]
        found.append(self._of_pair.forget((source, user)))
        key = hash((source, user))
        is_new = key not in self._right
        self._right[key] = None
        self._right.move_to_end(key)
        if len(self._right) > MOST_COUNTED:
            self._right.popitem(last=False)
        return is_new or any(found)

    def _is_counted(self, source: str) -> bool:
        return self._settings.limit_loopback or not is_loopback(source)


def _short(user: str) -> str:
    if len(user) <= LONG_NAME_CHARACTERS:
        return user
    return user[:LONG_NAME_CHARACTERS] + blake2b(user.encode(errors="replace"), digest_size=16).hexdigest()
