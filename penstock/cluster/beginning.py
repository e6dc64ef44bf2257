"""Begins a cluster with the log that a store has already: of a store alone, or of a cluster whose topic is gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from lightqueue.opening import OpenStore
from penstock.cluster.errors import KafkaUnreachable
from penstock.cluster.topic import TIMEOUT_S, ReplicatedTopic, asked
from penstock.config.settings import Settings
from penstock.errors import PenstockError, UsageError
from penstock.kafka_place import KafkaPlace
from store.errors import StoreError
from store.files.folder import LOG, DataFolder, clear
from store.files.segment import segment_paths, sync_folder
from store.log.copied import finish_copy
from store.log.mark_file import MARK_FILE, MarkFile, read_mark
from store.replication.frames import PROCESS_BYTES, Leader, epoch_frame
from store.replication.judging import ReplicaMark
from store.settings import StoreSettings

MARKING: Final = "marking"
BY: Final = "penstock-cluster-create"
"""The leader of the epoch that is begun, which never sends anything."""


class LogHistory(NamedTuple):
    """The log that a data folder has: up to log_offset `end`, in a cluster's `epoch` (0: in none)."""

    end: int
    epoch: int


def history_of(data: Path, settings: Settings) -> LogHistory:
    """The log with which the cluster is to begin. Its store is stopped. Raises PenstockError."""
    if not segment_paths(data / LOG):
        raise UsageError(f"{data}: has no log to begin a cluster with")
    try:
        folder = DataFolder(data, settings.store.group_access)
        try:
            finish_copy(data)
            known = read_mark(data)
        finally:
            folder.close()
        if known is not None:
            return LogHistory(known.mark.accepted, known.mark.epoch)
        return LogHistory(_recovered_end(settings.store), 0)
    except (StoreError, OSError) as error:
        raise PenstockError(str(error)) from None


def _recovered_end(settings: StoreSettings) -> int:
    """Start and stop the store, so that its log ends with a record."""
    opened = OpenStore(settings)
    try:
        return opened.log.end
    finally:
        opened.close()


def begin_with(data: Path, history: LogHistory, place: KafkaPlace, topic: ReplicatedTopic) -> None:
    """Have the folder's store follow the topic, and the log go on there after its history. Raises PenstockError."""
    try:
        _write_mark(data, topic.id, ReplicaMark(-1, 0, history.epoch, history.end, None))
    except (StoreError, OSError) as error:
        raise PenstockError(str(error)) from None
    frame = epoch_frame(history.epoch + 1, history.end, Leader(BY, os.urandom(PROCESS_BYTES)))
    _produce(place, frame.encode())


def _write_mark(data: Path, topic_id: str, mark: ReplicaMark) -> None:
    """In one step: a mark of an earlier topic says up to where the log was accepted."""
    marking = data / MARKING
    clear(marking)
    marking.mkdir(mode=0o700)
    file = MarkFile(marking, topic_id)
    file.write(mark)
    file.close()
    (marking / MARK_FILE).rename(data / MARK_FILE)
    sync_folder(data)
    clear(marking)


def _produce(place: KafkaPlace, value: bytes) -> None:
    faults: list[str] = []

    def told(error: KafkaError | None, _: Message) -> None:
        faults.append(error.str() if error is not None else "")

    def produce() -> None:
        producer = Producer({**place.config, "acks": "all", "enable.idempotence": True, "log_level": 0})
        producer.produce(place.topic, value, partition=0, on_delivery=told)
        producer.flush(TIMEOUT_S)

    asked(place.topic, produce)
    if faults != [""]:
        raise KafkaUnreachable(place.topic, faults[0] if faults else f"no answer within {TIMEOUT_S:g} s")
