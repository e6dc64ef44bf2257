"""The thread that reads the partition: a store must not go on without it."""

from __future__ import annotations

import queue

import pytest

from penstock.cluster.answers import FetcherFailed, FetchPlace, KafkaAnswer
from penstock.cluster.fetching import FrameFetcher
from penstock.kafka_place import KafkaLogin, named_place
from store.replication.judging import NOTHING_ACCEPTED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_foresaw_is_told_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(FrameFetcher, "_answer", fail)
    told: queue.Queue[KafkaAnswer] = queue.Queue()
    place = named_place("kafka://127.0.0.1:1/log", KafkaLogin(), "store-1", "penstock.cluster.kafka")
    fetcher = FrameFetcher(place, "an id", told.put)
    try:
        fetcher.fetch(FetchPlace(0, NOTHING_ACCEPTED))
        answer = told.get(timeout=20)
    finally:
        fetcher.close()
    assert isinstance(answer, FetcherFailed)
    assert "nobody foresaw" in str(answer.error)
