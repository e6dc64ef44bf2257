"""The fixture `rabbitmq`; a conftest.py that has tests with RabbitMQ imports it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.rabbitmq_broker import RabbitMqBroker


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RabbitMqBroker]":
    """A server that tests share: each has exchanges and queues of its own, and who kills it starts it again."""
    from tests.support.rabbitmq_broker import RabbitMqBroker, missing_for_rabbitmq  # most need no client of AMQP

    if missing := missing_for_rabbitmq():
        pytest.skip(missing)
    broker = RabbitMqBroker(tmp_path_factory.mktemp("rabbitmq"))
    yield broker
    broker.close()
