"""Stores for the tests of the client."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.kafka_fixtures import kafka as kafka
from tests.support.rabbitmq_fixtures import rabbitmq as rabbitmq
from tests.support.store_process import StoreProcess

if TYPE_CHECKING:
    from tests.support.console_browser import ConsoleBrowsers

ALONE = {"test_lookup.py", "test_storm.py"}
"""Nothing else is to run meanwhile: leases of 0.9 s that three gateways must not miss, and 10,000 clients that come at
once, or at a rate."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in ALONE:
            item.add_marker(pytest.mark.alone)


StartStore = Callable[..., StoreProcess]


@pytest.fixture
def start_client_store(tmp_path: Path) -> Iterator[StartStore]:
    started: list[StoreProcess] = []

    def start(listen: str = "", **settings: object) -> StoreProcess:
        folder = tmp_path / f"store-{len(started)}"
        folder.mkdir()
        by_path = {path.replace("__", "."): value for path, value in settings.items()}
        started.append(StoreProcess(folder, listen, by_path))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def running(start_client_store: StartStore) -> StoreProcess:
    return start_client_store(store__live_only="live/#")


@pytest.fixture
def url(running: StoreProcess) -> str:
    return running.url.replace("tcp://", "penstock://")


@pytest.fixture(scope="module")
def browsers() -> "Iterator[ConsoleBrowsers]":
    """A headless Chromium for the console's pages."""
    from tests.support.console_browser import chromium

    with chromium() as found:
        yield found
