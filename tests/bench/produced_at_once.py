"""`penstock store` that leads a cluster whose produces are answered at once: the cost of the rules, without Kafka.

    python -m tests.bench.produced_at_once store --data DIR --listen URL

The partition is in this process: it keeps the newest records, and nobody else reads them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from loadtest.chaos.part import Part
from penstock import cli
from penstock.cluster import member
from penstock.cluster import process as cluster_process
from penstock.cluster.answers import FetchPlace, FrameStands, KafkaAnswer, RecordsFetched
from penstock.cluster.topic import ReplicatedTopic
from store.replication.frames import LogFrame
from tests.support.server_process import ROOT, free_port
from tests.support.store_process import StoreProcess

KEPT = 100
WAIT_S = 0.1
URL = "kafka://127.0.0.1:9/at-once"
GOOD = {
    "max.message.bytes": "1048588",
    "min.insync.replicas": "2",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}
TOPIC = ReplicatedTopic("at-once", 1, 3, GOOD)

newest: deque[tuple[int, bytes]] = deque(maxlen=KEPT)


class AtOnceProducer:
    """In place of FrameProducer: a frame stands as soon as it is sent."""

    def __init__(self, place: object, answer_s: float, report: Callable[[KafkaAnswer], None]) -> None:
        self._report = report

    def send(self, frame: LogFrame, value: bytes) -> None:
        offset = newest[-1][0] + 1 if newest else 0
        newest.append((offset, value))
        self._report(FrameStands(frame, offset))

    def close(self, timeout_s: float) -> None:
        """Nothing is under way."""


class AtOnceFetcher:
    """In place of FrameFetcher."""

    def __init__(self, place: object, topic_id: str, report: Callable[[KafkaAnswer], None]) -> None:
        self._report = report
        self._asked: threading.Timer | None = None

    @property
    def is_asked(self) -> bool:
        return self._asked is not None

    def fetch(self, place: FetchPlace) -> None:
        self._asked = threading.Timer(WAIT_S, lambda: self._answer(place.position))
        self._asked.start()

    def _answer(self, position: int) -> None:
        self._asked = None
        self._report(RecordsFetched([each for each in newest if each[0] >= position], is_end=True))

    def close(self) -> None:
        if self._asked is not None:
            self._asked.cancel()


class AtOnceProgress:
    """In place of ProgressThread."""

    def __init__(self, *_: object) -> None:
        """Nobody is told."""

    def tell_now(self) -> None:
        """Nobody is told."""

    def close(self) -> None:
        """There is no thread."""


class AtOnceAdmin:
    """In place of TopicAdmin."""

    def __init__(self, place: object) -> None:
        """Nothing is asked."""

    def describe(self) -> ReplicatedTopic:
        return TOPIC


class AtOnceStore(StoreProcess):
    """Such a store as a process; made once it serves."""

    module = "tests.bench.produced_at_once"

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self._peers = []
        command = ["store", "--data", str(self.data), "--listen", self.url]
        settings: dict[str, Any] = {"store.replicated_log": URL}
        Part.__init__(self, folder / "store.log", command, settings, {"PYTHONPATH": str(ROOT)})


def main() -> None:
    with (
        patch.object(member, "FrameProducer", AtOnceProducer),
        patch.object(member, "FrameFetcher", AtOnceFetcher),
        patch.object(member, "ProgressThread", AtOnceProgress),
        patch.object(cluster_process, "TopicAdmin", AtOnceAdmin),
    ):
        cli.main()


if __name__ == "__main__":
    main()
