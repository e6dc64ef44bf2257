"""What the console keeps of figures, from looks that are made by hand: restarts, gaps, merging, bounds."""

from __future__ import annotations

import math
from array import array

import pytest

from penstock.console.observe import history as of_history
from penstock.console.observe.figures import Figures
from penstock.console.observe.growth import DELIVERED, HISTOGRAMS, MOST_PROCESSES, Growth, quantile_s
from penstock.console.observe.history import ALL, MOST_GATEWAYS, MOST_POINTS, FigureHistory
from penstock.console.observe.look import CONNECTIONS, GROUP_LAG, SENT, SERVER, STORED, ProcessLook, ServerLook
from penstock.console.observe.samples import KEPT, MOST_COUNT, SAMPLE_BYTES, SamplePoint, SampleRing
from store.wire.operator_messages import Sample, ServerShown

SAMPLE_S = 10
SHOWN = ServerShown("1", 0, "{}", "", "", [], None)


def delivered(*counts: float) -> list[Sample]:
    """A histogram with so many in its first buckets."""
    bounds = [*map(str, HISTOGRAMS[DELIVERED]), "+Inf"]
    whole = [*counts, *[0.0] * (len(bounds) - len(counts))]
    return [(f"{DELIVERED}_bucket", {"le": bound}, sum(whole[: at + 1])) for at, bound in enumerate(bounds)]


def gateway(sent: float, clients: float = 1, times: list[Sample] | None = None, started_ms: int = 1) -> ProcessLook:
    samples: list[Sample] = [(SENT, {"qos": "0"}, sent), (CONNECTIONS, {}, clients), *(times or [])]
    return ProcessLook(Figures(samples), started_ms)


def store(stored: float, lag: float = 0, started_ms: int = 1) -> ProcessLook:
    return ProcessLook(Figures([(STORED, {}, stored), (GROUP_LAG, {"group": "g"}, lag)]), started_ms)


class Clocked:
    """A history, and a clock that goes on by SAMPLE_S with each look."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.history = FigureHistory(lambda: self.now_s, SAMPLE_S)

    def look(self, **processes: ProcessLook) -> ServerLook:
        self.now_s += SAMPLE_S
        by_name = {SERVER if name == "store" else name: each for name, each in processes.items()}
        return ServerLook(self.now_s, SHOWN, by_name)

    def add(self, **processes: ProcessLook) -> None:
        self.history.add(self.look(**processes))

    def numbers(self, which: str, name: str = ALL) -> list[float | None]:
        return [point.numbers.get(which) for point in self.history.chart(name, 3_600).points]


def test_rates_are_differences_summed_and_by_gateway() -> None:
    clocked = Clocked()
    clocked.add(store=store(1_000), a=gateway(500, 2), b=gateway(100, 3))
    assert clocked.numbers("in") == []
    clocked.add(store=store(1_100, lag=7), a=gateway(600, 2), b=gateway(150, 3))
    assert clocked.numbers("in") == [10]
    assert clocked.numbers("out") == [15]
    assert clocked.numbers("clients") == [5]
    assert clocked.numbers("group_lag") == [7]
    assert (clocked.numbers("out", "a"), clocked.numbers("out", "b")) == ([10], [5])
    assert clocked.numbers("group_lag", "a") == [None]


def test_a_process_that_begins_at_zero_gives_a_gap_and_no_negative_rate_or_spike() -> None:
    clocked = Clocked()
    clocked.add(store=store(1_000), a=gateway(500))
    clocked.add(store=store(1_100), a=gateway(600))
    clocked.add(store=store(5_000, started_ms=2), a=gateway(610))  # it is ahead of what it had before
    clocked.add(store=store(5_010, started_ms=2), a=gateway(0))
    clocked.add(store=store(5_020, started_ms=2), a=gateway(20), c=gateway(10_000))
    clocked.add(store=store(5_030, started_ms=2), c=gateway(10_040))
    assert clocked.numbers("in") == [10, None, 1, 1, 1]
    assert clocked.numbers("out") == [10, 1, None, 2, 4]


def test_history_spreads_a_count_over_a_gap_without_looks() -> None:
    clocked = Clocked()
    clocked.add(store=store(0), a=gateway(0))
    for _ in range(8):
        clocked.add(store=store(0))
    clocked.add(store=store(0), a=gateway(900))
    assert clocked.numbers("out")[-1] == 10


def test_times_are_those_of_the_last_minutes() -> None:
    clocked = Clocked()
    clocked.add(store=store(0), a=gateway(0, times=delivered(1e9)))  # since long, and at once
    clocked.add(store=store(0), a=gateway(0, times=delivered(1e9, 0, 100)))
    look = clocked.look(store=store(0), a=gateway(0, times=delivered(1e9, 0, 100, 1)))
    bounds = HISTOGRAMS[DELIVERED]
    for name in (ALL, "a"):
        found = clocked.history.last_minutes(name, look, look.at_s)
        p50, p99 = found.quantile_s(DELIVERED, 0.5), found.quantile_s(DELIVERED, 0.99)
        assert p50 is not None
        assert p99 is not None
        assert bounds[1] < p50 < p99 <= bounds[2]
        assert found.quantile_s(DELIVERED, 1.0) == bounds[3]
    later_s = clocked.now_s + 400
    assert clocked.history.last_minutes(ALL, None, later_s).quantile_s(DELIVERED, 0.5) is None


def test_a_chart_ages_while_nothing_comes() -> None:
    clocked = Clocked()
    clocked.add(store=store(0))
    clocked.add(store=store(0))
    assert len(clocked.history.chart(ALL, 900).points) == 1
    clocked.now_s += 1_000
    assert clocked.history.chart(ALL, 900).points == []


def test_rates_of_now_reach_back_to_the_sample_before_the_last() -> None:
    clocked = Clocked()
    clocked.add(store=store(0))
    clocked.add(store=store(100))
    same = clocked.look(store=store(100))
    for _ in range(2):  # others had looked within this second
        clocked.history.add(same)
    assert clocked.history.recent(same)[SERVER].rate(STORED) == 0
    assert clocked.numbers("in") == [10, 0]
    assert clocked.history.recent(clocked.look(store=store(400)))[SERVER].rate(STORED) == 15
    assert clocked.history.recent(clocked.look(store=store(400, started_ms=2))) == {}


def test_quantiles() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert quantile_s([0, 0, 0, 0], bounds, 0.5) is None
    assert quantile_s([4, 0, 0, 0], bounds, 0.5) == 0.5
    assert quantile_s([0, 0, 0, 5], bounds, 0.5) == 4.0  # more than that is not known
    assert quantile_s([1, 0, 1, 0], bounds, 1.0) == 4.0


def test_a_day_is_kept_in_bounded_memory_and_told_in_few_points() -> None:
    ring = SampleRing()
    times = {name: [float(at)] * (len(bounds) + 1) for at, (name, bounds) in enumerate(HISTOGRAMS.items())}
    for number in range(KEPT + 100):
        ring.add(SamplePoint(number * SAMPLE_S * 1_000, {"in": number, "group_lag": number % 12}, times))
    assert len(ring) == KEPT
    columns = [each for each in vars(ring).values() if isinstance(each, array)]
    assert sum(each.itemsize * len(each) for each in columns) == KEPT * SAMPLE_BYTES
    assert KEPT * SAMPLE_BYTES < 2.2e6
    alone = ring.points(0, SAMPLE_S)
    assert [point.numbers["in"] for point in alone] == list(range(100, KEPT + 100))
    joined = ring.points(0, SAMPLE_S * KEPT // MOST_POINTS)
    assert len(joined) <= MOST_POINTS + 1
    whole = joined[1]
    assert whole.numbers == {"in": pytest.approx(sum(range(108, 120)) / 12), "group_lag": 11}
    assert whole.times == {name: [12 * count for count in counts] for name, counts in times.items()}


def test_history_keeps_absurd_values_finite() -> None:
    ring = SampleRing()
    ring.add(SamplePoint(0, {"in": 2.0**53 / 1e-3}, {DELIVERED: [1e18] * (len(HISTOGRAMS[DELIVERED]) + 1)}))
    (point,) = ring.points(0, SAMPLE_S)
    assert math.isfinite(point.numbers["in"])
    assert set(point.times[DELIVERED]) == {MOST_COUNT}


def test_gateways_that_come_and_go_take_bounded_memory() -> None:
    clocked = Clocked()
    for number in range(3 * MOST_GATEWAYS):
        for sent in range(2):
            clocked.add(store=store(0), **{f"g{number}": gateway(sent)})
        clocked.now_s += 2 * SAMPLE_S
    assert sum(clocked.history.has(f"g{number}") for number in range(3 * MOST_GATEWAYS)) == MOST_GATEWAYS
    assert clocked.history.has(f"g{3 * MOST_GATEWAYS - 1}")
    at_once = {f"h{number}": gateway(0) for number in range(3 * MOST_GATEWAYS)}
    for _ in range(3):
        clocked.add(store=store(0), **at_once)
    assert clocked.numbers("clients")[-1] == 3 * MOST_GATEWAYS
    growth = Growth()
    growth.keep(clocked.look(**{f"p{number}": gateway(0) for number in range(MOST_PROCESSES + 10)}))
    assert len(growth.keep(clocked.look(**{f"p{MOST_PROCESSES}": gateway(0)}))) == 1
    assert of_history.MOST_CHARTS < 100
