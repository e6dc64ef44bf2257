"""The model: what it says follows from the costs, and the costs that come along are true of what can be counted."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtest.errors import LoadTestError
from loadtest.model.needs import Costs, Demand, count, needs, read, table

COSTS = Costs(
    gateway_turning_cores=0.2,
    gateway_in_us=10,
    gateway_out_us=5,
    gateway_alone_us=100,
    store_turning_cores=0.2,
    store_us=2,
    hop_us=5,
    connect_gateway_us=200,
    connect_store_us=50,
    gateway_base_bytes=50e6,
    store_base_bytes=60e6,
    gateway_connection_bytes=3_000,
    store_connection_bytes=600,
    queue_bytes=100,
    queue_disk_bytes=50,
    message_disk_bytes=80,
)
MILLIONS = Demand(1_000_000, 10_000_000, 1e6, size=200, topic_size=20, fan_out=2, keep_alive_s=50)


def test_needs_of_a_fleet_follow_from_the_costs() -> None:
    found = needs(MILLIONS, COSTS)
    assert found.gateway_cores == pytest.approx(10 + 2 * 5 + 2)  # in, out, and 20,000 pings/s
    assert (found.gateways, found.gateway_bound) == (44, "CPU")  # 22 cores, each with half of one for messages
    assert found.store_cores == pytest.approx(2)
    assert found.stores == 4
    assert found.gateway_bytes == 44 * 50e6 + 3e9
    assert found.store_bytes == 4 * 60e6 + 600e6 + 1e9
    assert found.disk_bytes_per_s == 300e6
    assert found.disk_bytes == pytest.approx(300e6 * 86_400 + 500e6)
    assert found.reconnect_s == pytest.approx(50 / 4)


@pytest.mark.parametrize(
    ("demand", "gateways", "bound"),
    [
        (Demand(1_000, 0, 10), 2, "that one may fail"),
        (Demand(1_000_000, 0, 10, keep_alive_s=3_600), 10, "connections"),
        (Demand(1_000, 0, 1e6), 31, "CPU"),
    ],
)
def test_gateway_number_follows_from_the_tightest_bound(demand: Demand, gateways: int, bound: str) -> None:
    found = needs(demand, COSTS)
    assert (found.gateways, found.gateway_bound) == (gateways, bound)


def test_more_of_anything_never_needs_less() -> None:
    least = needs(MILLIONS, COSTS)
    for more in ({"connections": 2_000_000}, {"queues": 20_000_000}, {"rate": 2e6}, {"fan_out": 4.0}, {"size": 400}):
        found = needs(replace(MILLIONS, **more), COSTS)
        for name in ("gateways", "stores", "gateway_bytes", "store_bytes", "disk_bytes", "network_bytes_per_s"):
            assert getattr(found, name) >= getattr(least, name), (more, name)


def test_the_costs_that_come_along_are_near_what_was_measured_with_them() -> None:
    """Counts only: times depend on what else a machine does."""
    checks = [check for check in read(None).checks if check.unit == "bytes"]
    assert len(checks) >= 3
    for check in checks:
        assert abs(check.error) < 0.25, check
    assert len(table(MILLIONS, needs(MILLIONS, read(None).costs), read(None).costs)) == 8


@pytest.mark.parametrize(("text", "value"), [("1M", 1e6), ("250k", 250_000), ("1.5G", 1.5e9), ("12", 12), ("0", 0)])
def test_numbers_as_people_write_them(text: str, value: float) -> None:
    assert count(text) == value


@pytest.mark.parametrize("text", ["", "M", "many", "-1", "nan", "1e30"])
def test_invalid_counts_are_refused(text: str) -> None:
    with pytest.raises(LoadTestError, match="use one like 20000, 250k or 1M"):
        count(text)


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(LoadTestError, match="--measure"):
        read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(LoadTestError, match="not a file of measured costs"):
        read(tmp_path / "bad.json")
