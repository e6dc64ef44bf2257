"""Fixtures for the tests of the gateway without sockets; see tests/support/mqtt_bench.py."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mqtt_bench import Bench, SlowDisk, WallClock

StartBench = Callable[..., Bench]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


@pytest.fixture(params=[False, True], ids=["one process", "over the wire"])
def apart(request: pytest.FixtureRequest) -> bool:
    """Whether the gateway's store is at the other end of a wire."""
    return bool(request.param)


@pytest.fixture
def start_bench(tmp_path: Path, clock: WallClock, apart: bool) -> Iterator[StartBench]:
    """Starts brokers with other settings than the defaults, each over a store of its own."""
    benches: list[Bench] = []

    def start(flush: str = "async", **settings: Any) -> Bench:
        benches.append(Bench(tmp_path / f"data-{len(benches)}", clock, flush, apart=apart, **settings))
        return benches[-1]

    yield start
    for bench in benches:
        bench.close()


@pytest.fixture
def bench(start_bench: StartBench) -> Bench:
    return start_bench()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, start_bench: StartBench) -> Iterator[SlowDisk]:
    """Listed after start_bench, so that it lets go before the store is closed."""
    slow = SlowDisk(monkeypatch)
    yield slow
    slow.finish()
