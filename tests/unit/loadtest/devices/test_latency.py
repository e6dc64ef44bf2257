"""The buckets that latencies are counted in: as exact as a HDR histogram of three digits."""

import base64
from itertools import pairwise

import pytest

from loadtest.devices._swarm import Swarm, bucket_us
from loadtest.devices.latency import Latency, curve


def test_buckets_are_in_order_and_close_together() -> None:
    found = [bucket_us(bucket) for bucket in range(20_000)]
    assert found == sorted(set(found))
    assert found[:2_048] == list(range(2_048))
    assert all(later - earlier <= max(1, earlier / 1_000) for earlier, later in pairwise(found))


def test_percentiles() -> None:
    latency = Latency.of([(us, 1) for us in range(1, 1_001)])
    assert latency is not None
    assert (latency.count, latency.p50, latency.p99, latency.max) == (1_000, 500, 990, 1_000)
    assert base64.b64decode(latency.histogram)
    assert curve(latency.histogram)[-1] == (100.0, 1_000)
    assert Latency.of([]) is None


@pytest.mark.parametrize("size", [0, 15, (1 << 20) + 1])
def test_payloads_have_room_for_what_is_measured(size: int) -> None:
    with pytest.raises(ValueError, match="16 bytes to 1 MiB"):
        Swarm().add_group([b"t"], 1, 0, 1, [size])
