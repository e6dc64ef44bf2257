"""The fixture `kafka`; a conftest.py that has tests with Kafka imports it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.kafka_broker import KafkaBroker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[KafkaBroker]":
    """A broker that tests share: each has topics of its own, and who kills it starts it again."""
    from tests.support.kafka_broker import KafkaBroker, missing_for_kafka  # most tests need no client of Kafka

    if missing := missing_for_kafka():
        pytest.skip(missing)
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.close()
