"""Stores for the tests of the client."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store_process import StoreProcess

ALONE = {
    *("test_admin_apart.py", "test_drain.py", "test_lookup.py", "test_redis_table.py"),
    *("test_sdk_delayed.py", "test_store_link.py", "test_store_process.py", "test_storm.py"),
}
"""Their tests stop processes, let leases end or look at how long something took: nothing else is to run meanwhile."""


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
