"""Fixtures of the crash tests."""

import pytest

from tests.conftest import QUICK
from tests.support.kafka_fixtures import kafka as kafka
from tests.support.rabbitmq_fixtures import rabbitmq as rabbitmq

SMALL = {
    **QUICK,
    # Everything happens often: segments fill, the index is written and flushed while the load runs.
    "store.segment_bytes": 262_144,
    "gateway.maximum_packet_size_bytes": 65_536,
    "store.index_flush_ms": 5,
    "store.index_write_buffer_bytes": 65_536,
    "gateway.sys_interval_s": 0,
}


@pytest.fixture
def small() -> dict[str, object]:
    """Settings under which a little load exercises much of the store."""
    return dict(SMALL)
