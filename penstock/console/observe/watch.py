"""What went wrong in the last minutes, which no single look at the server shows: groups that stand still or fall
behind, dead letters, failed logins, a slow disk, a gateway that is away. The console watches all the time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import quote, urlencode

from penstock.console.observe.growth import Growth
from penstock.console.observe.look import ServerLook
from penstock.console.observe.troubles import Trouble
from penstock.console.store.operator import OperatorConnection
from store.wire.group_messages import GroupInfo, GroupList, GroupsListed, PausedGroups

POINTS = 30
"""Of the time that is watched; they and what they have of each group are all that is kept."""
LEAST_PERIOD_S = 1.0
GROWN_MESSAGES = 100
FAILED_LOGINS = 10
REFUSED = 100
SLOW_SYNC_S = 0.1
FAILED, LIMITED = "penstock_logins_failed_total", "penstock_logins_limited_total"
REFUSED_TOTALS = ("penstock_connects_refused_total", "penstock_messages_refused_total")
SYNCS = "penstock_log_sync_duration_seconds"
GATEWAYS = "penstock_wire_gateways"
COUNTED = (FAILED, LIMITED, *REFUSED_TOTALS)

GroupKey = tuple[str, str]


class GroupPoint(NamedTuple):
    """A group at a time: messages that are done with since its queue began, and the others."""

    done: int
    lag: int
    in_flight: int
    dead_letters: int
    consumers: int
    paused: bool


class WatchPoint(NamedTuple):
    """The server at a time (seconds of the loop's clock). `counts`: of all processes together. `syncs`: of each bucket
    of a histogram, bound and count.
    """

    at_s: float
    groups: dict[GroupKey, GroupPoint]
    counts: dict[str, float]
    syncs: dict[float, float]


@dataclass(slots=True)
class Watch:
    """`stuck_s`: how long a group may stand still, and how far back the watch looks, in seconds."""

    stuck_s: float
    points: deque[WatchPoint] = field(default_factory=lambda: deque(maxlen=POINTS + 1))
    moved: dict[GroupKey, tuple[int, float]] = field(default_factory=dict)
    """Of each group what was done with when that changed last, and when."""

    counts: Counter[str] = field(default_factory=Counter)
    """What processes counted since the watch began, whichever of them came and went."""
    growth: Growth = field(default_factory=lambda: Growth(COUNTED, ()))

    @property
    def period_s(self) -> float:
        """How often look() is to be called."""
        return max(LEAST_PERIOD_S, self.stuck_s / POINTS)

    async def look(self, operator: OperatorConnection, look: ServerLook) -> None:
        """Raises an OperatorError."""
        self.take(look, await _groups(operator))

    def take(self, look: ServerLook, groups: dict[GroupKey, GroupPoint]) -> None:
        for grown in self.growth.keep(look).values():
            self.counts.update(grown.counts)
        gateways = look.figures.total(GATEWAYS)
        counts = {**self.counts} | ({GATEWAYS: gateways} if gateways is not None else {})
        self.seen(WatchPoint(look.at_s, groups, counts, look.figures.buckets(SYNCS)))

    def seen(self, point: WatchPoint) -> None:
        self.points.append(point)
        self.moved = {key: self._moved(key, found, point.at_s) for key, found in point.groups.items()}

    def _moved(self, key: GroupKey, found: GroupPoint, now_s: float) -> tuple[int, float]:
        before = self.moved.get(key)
        is_still = before is not None and before[0] == found.done and found.in_flight and not found.paused
        return before if is_still and before is not None else (found.done, now_s)

    def troubles(self) -> list[Trouble]:
        """Those of groups first; that a group has no consumer is in troubles() of the overview."""
        if not self.points:
            return []
        return [*self._of_groups(), *self._of_server()]

    # --- groups

    def _of_groups(self) -> Iterator[Trouble]:
        last = self.points[-1]
        for key, found in sorted(last.groups.items(), key=lambda each: -each[1].lag):
            name, page = f"group {key[0]} over {key[1]}", _page("/group", name=key[0], filter=key[1])
            still_s = last.at_s - self.moved[key][1]
            if found.paused:
                yield Trouble(f"{name} is paused, with a lag of {found.lag:,}", "resume it on its page", page)
            elif found.lag and found.in_flight and still_s >= self.stuck_s:
                yield Trouble(
                    f"{name} stands still: nothing was acknowledged for {_time(still_s)}, with {found.in_flight:,} "
                    f"in flight and a lag of {found.lag:,}",
                    "end the consumer that holds messages and acknowledges none, and others get them",
                    page,
                )
            elif self._grows(key):
                yield Trouble(
                    f"{name} falls behind: its lag grew to {found.lag:,} in {_time(self._span_s)}",
                    "start more consumers, or find what slows them",
                    page,
                )
            first = self.points[0].groups.get(key)  # None: it was made since then
            dead = found.dead_letters - (first.dead_letters if first is not None else 0)
            if dead > 0:
                yield Trouble(
                    f"group {key[0]} gave up {dead:,} messages in the last {_time(self._span_s)}",
                    "see why in its dead letters; publish them again once the cause is mended",
                    _page("/letters", name=key[0]),
                )

    @property
    def _span_s(self) -> float:
        return self.points[-1].at_s - self.points[0].at_s

    def _grows(self, key: GroupKey) -> bool:
        """Whether its lag was never smaller than before, all the time that is watched."""
        lags = [point.groups[key].lag for point in self.points if key in point.groups]
        is_long = len(lags) > POINTS // 2
        return is_long and lags[-1] - lags[0] >= GROWN_MESSAGES and all(one <= other for one, other in pairwise(lags))

    # --- the server

    def _of_server(self) -> Iterator[Trouble]:
        span = _time(self._span_s)
        failed = self._grown(FAILED)
        if failed >= FAILED_LOGINS:
            limited = self._grown(LIMITED)
            unheard = f", {limited:,.0f} of them unheard" if limited else ""
            yield Trouble(
                f"{failed:,.0f} logins failed in the last {span}{unheard}",
                "see who in the audit log; penstock ban add keeps an address out",
                "/clients",
            )
        refused = sum(self._grown(name) for name in REFUSED_TOTALS)
        if refused >= REFUSED:
            yield Trouble(
                f"{refused:,.0f} connections and messages were refused in the last {span}",
                "see the reasons in penstock_connects_refused_total and penstock_messages_refused_total",
            )
        slow = self._slow_sync_s()
        if slow >= SLOW_SYNC_S:
            yield Trouble(
                f"the disk is slow: one of a hundred flushes took up to {slow * 1_000:,.0f} ms in the last {span}",
                "see what else uses the disk of the log, or put store.data on a faster one",
            )
        most, now = max(point.counts.get(GATEWAYS, 0) for point in self.points), self.points[-1].counts.get(GATEWAYS, 0)
        if now < most:
            yield Trouble(
                f"{most - now:,.0f} of {most:,.0f} gateways are away",
                "see the log of the gateway's process; clients connect to the others meanwhile",
                "#gateways",
            )

    def _grown(self, name: str) -> float:
        """How much a counter grew; a process that was started again counts from 0."""
        counts = [point.counts.get(name, 0) for point in self.points]
        return sum(max(0, other - one) for one, other in pairwise(counts))

    def _slow_sync_s(self) -> float:
        """99 % of the flushes of this time took no longer; 0: there were too few."""
        first, last = self.points[0].syncs, self.points[-1].syncs
        grown = {bound: count - first.get(bound, 0) for bound, count in sorted(last.items())}
        total = max(grown.values(), default=0)
        if total < FAILED_LOGINS or min(grown.values()) < 0:
            return 0.0
        finite = [bound for bound in grown if bound != float("inf")]
        return next((bound for bound, count in grown.items() if count >= 0.99 * total and bound in finite), finite[-1])


async def _groups(operator: OperatorConnection) -> dict[GroupKey, GroupPoint]:
    """All of all namespaces; their names are those of the log. Raises an OperatorError."""
    paused = {(each.group, each.topic_filter) for each in await _listed(operator, PausedGroups)}
    found = {}
    for each in await _listed(operator, GroupList):
        key = each.group, each.topic_filter
        done = each.next_offset - each.lag
        found[key] = GroupPoint(done, each.lag, each.in_flight, each.dead_letters, each.consumers, key in paused)
    return found


async def _listed(operator: OperatorConnection, kind: type[GroupList | PausedGroups]) -> list[GroupInfo]:
    found: list[GroupInfo] = []
    more = True
    while more:
        answer = await operator.ask(kind("", len(found)), GroupsListed)
        found += answer.groups
        more = answer.more and bool(answer.groups)
    return found


def _page(path: str, **parameters: str) -> str:
    return f"{path}?{urlencode(parameters, quote_via=quote)}"


def _time(seconds: float) -> str:
    """For people.

    >>> _time(42), _time(1_080)
    ('42 s', '18 minutes')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
