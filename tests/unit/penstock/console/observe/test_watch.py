"""What the console's watch calls wrong, from looks at a server that are made by hand."""

from __future__ import annotations

import pytest

from penstock.console.observe.figures import Figures
from penstock.console.observe.look import SERVER, ProcessLook, ServerLook
from penstock.console.observe.watch import FAILED, GATEWAYS, POINTS, REFUSED_TOTALS, GroupPoint, Watch, WatchPoint
from store.wire.operator_messages import ServerShown

KEY = ("billing", "line/#")
STUCK_S = 300.0
PERIOD_S = STUCK_S / POINTS


def group(done: int = 10, lag: int = 0, in_flight: int = 0, dead_letters: int = 0, paused: bool = False) -> GroupPoint:
    return GroupPoint(done, lag, in_flight, dead_letters, 1, paused)


def watched(*points: WatchPoint | GroupPoint | dict[str, float]) -> list[str]:
    """What is wrong after these looks, one a period; a group alone, or counts alone, make a look."""
    watch = Watch(STUCK_S)
    for number, point in enumerate(points):
        groups = {KEY: point} if isinstance(point, GroupPoint) else {}
        counts = point if isinstance(point, dict) else {}
        look = point if isinstance(point, WatchPoint) else WatchPoint(number * PERIOD_S, groups, counts, {})
        watch.seen(look)
    found = watch.troubles()
    assert all(each.remedy for each in found)
    return [each.what for each in found]


def test_a_group_that_acknowledges_nothing_stands_still() -> None:
    (what,) = watched(*[group(lag=108_575, in_flight=1)] * (POINTS + 1))
    assert what.startswith("group billing over line/# stands still: nothing was acknowledged for 5 minutes, with 1 in ")
    assert watched(*[group(lag=5, in_flight=1)] * POINTS) == []
    assert watched(*[group(lag=5)] * (2 * POINTS)) == []
    assert watched(*[group(number, lag=5, in_flight=1) for number in range(2 * POINTS)]) == []


def test_a_group_that_goes_on_after_a_while_does_not_stand_still() -> None:
    still = [group(lag=50, in_flight=1)] * (2 * POINTS)
    assert len(watched(*still)) == 1
    assert watched(*still, group(done=11, lag=49, in_flight=1)) == []


def test_a_paused_group_is_said_to_be_paused() -> None:
    (what,) = watched(*[group(lag=7, in_flight=1, paused=True)] * (2 * POINTS))
    assert what == "group billing over line/# is paused, with a lag of 7"


def test_a_group_falls_behind_whose_lag_never_shrinks() -> None:
    (what,) = watched(*(group(number, lag=10 * number) for number in range(POINTS)))
    assert "falls behind: its lag grew to 290 in " in what
    assert watched(*(group(number, lag=10 * number if number != 20 else 0) for number in range(POINTS))) == []
    assert watched(*(group(number, lag=number) for number in range(POINTS))) == []


def test_dead_letters_of_the_last_minutes_are_told() -> None:
    (what,) = watched(group(dead_letters=19_185), group(dead_letters=19_200))
    assert what == "group billing gave up 15 messages in the last 10 s"
    assert watched(*[group(dead_letters=19_200)] * (POINTS + 2)) == []
    assert watched({}, group(dead_letters=1)) == ["group billing gave up 1 messages in the last 10 s"]  # it is new


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        (({FAILED: 5}, {FAILED: 15}), "10 logins failed in the last 10 s"),
        (({FAILED: 50}, {FAILED: 0}, {FAILED: 12}), "12 logins failed"),
        (({REFUSED_TOTALS[0]: 0, REFUSED_TOTALS[1]: 0}, {REFUSED_TOTALS[0]: 60, REFUSED_TOTALS[1]: 40}), "100 connect"),
        (({GATEWAYS: 4}, {GATEWAYS: 3}), "1 of 4 gateways are away"),
    ],
)
def test_watch_reports_troubles_from_a_servers_counters(counts: tuple[dict[str, float], ...], what: str) -> None:
    (found,) = watched(*counts)
    assert what in found
    assert watched(*counts[-1:]) == []
    assert watched(counts[-1], counts[-1]) == []


def test_a_disk_is_slow_by_what_it_took_in_these_minutes() -> None:
    before = {0.01: 1e6, 0.25: 1e6, float("inf"): 1e6}
    slow = {0.01: 1e6 + 90, 0.25: 1e6 + 100, float("inf"): 1e6 + 100}
    quick = {0.01: 1e6 + 100, 0.25: 1e6 + 100, float("inf"): 1e6 + 100}
    (what,) = watched(WatchPoint(0, {}, {}, before), WatchPoint(60, {}, {}, slow))
    assert "one of a hundred flushes took up to 250 ms in the last 60 s" in what
    assert watched(WatchPoint(0, {}, {}, before), WatchPoint(60, {}, {}, quick)) == []
    assert watched(WatchPoint(0, {}, {}, slow), WatchPoint(60, {}, {}, before)) == []


def looked(at_s: float, gateways: float, **failed: float) -> ServerLook:
    """A store, and gateways that counted so many failed logins."""
    of_store = ProcessLook(Figures([(GATEWAYS, {"told": "everything"}, gateways)]))
    by_name = {name: ProcessLook(Figures([(FAILED, {}, number)])) for name, number in failed.items()}
    return ServerLook(at_s, ServerShown("1", 0, "{}", "", "", [], None), {SERVER: of_store, **by_name})


def test_failed_logins_count_at_every_gateway_whichever_come_and_go() -> None:
    watch = Watch(STUCK_S)
    for look in (
        looked(0, 2, a=500, b=900),
        looked(10, 2, a=506, b=905),
        looked(20, 1, a=506),
        looked(30, 2, a=507, c=7),
    ):
        watch.take(look, {})
    (failed,) = watch.troubles()
    assert failed.what == "12 logins failed in the last 30 s"
    watch.take(looked(40, 1, a=507), {})
    assert [each.what for each in watch.troubles()][1:] == ["1 of 2 gateways are away"]
    assert all(each.page for each in watch.troubles())


def test_watch_keeps_a_bounded_number_of_points() -> None:
    watch = Watch(STUCK_S)
    for number in range(1_000):
        watch.seen(WatchPoint(number, {(f"g{number}", "#"): group()}, {}, {}))
    assert len(watch.points) == POINTS + 1
    assert len(watch.moved) == 1
