"""Fixtures for tests of flows, to be imported: a store, and a client of it that waits for the module's PATIENCE_S."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.support.store_process import StoreProcess


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path)
    yield store
    store.close()


@pytest.fixture
def client(store: StoreProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(store.url.replace("tcp://", "penstock://"), timeout_s=request.module.PATIENCE_S) as client:
        yield client
