"""The fixture `kafka`; a conftest.py that has tests with Kafka imports it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from loadtest.ports import free_port

if TYPE_CHECKING:
    from tests.support.kafka_broker import KafkaBroker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[KafkaBroker]":
    """A broker that tests share: each has topics of its own, and who kills it starts it again."""
    from tests.support.kafka_broker import KafkaBroker, KafkaNode, missing_for_kafka  # most need no client of Kafka
    from tests.support.kafka_secured import KafkaSecured

    if missing := missing_for_kafka():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("kafka")
    broker = KafkaBroker(
        folder, KafkaNode(secured=KafkaSecured.made(folder), relayed_port=free_port(), relay_port=free_port())
    )
    yield broker
    broker.close()
