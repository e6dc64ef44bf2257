"""Writes frames to the partition: librdkafka sends them, and a thread of ours waits for its answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.cluster.answers import FrameRefused, FrameStands, FrameUnanswered, KafkaAnswer
from penstock.kafka_place import KafkaPlace
from store.replication.frames import LogFrame

POLL_S: Final = 0.2
LARGEST_BYTES: Final = 1_000_000_000  # librdkafka's own bound; the topic has a smaller one
_TOO_LARGE: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


class FrameProducer:
    """Owner of the producer and its thread. send() is called from one thread."""

    def __init__(self, place: KafkaPlace, answer_s: float, report: Callable[[KafkaAnswer], None]) -> None:
        """`answer_s`: a frame without an answer is given up after so long. `report`: called by the thread."""
        self._topic = place.topic
        self._report = report
        self._producer = Producer(
            {
                **place.config,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "compression.type": "none",
                "message.max.bytes": LARGEST_BYTES,
                "delivery.timeout.ms": round(answer_s * 1000),
                "request.timeout.ms": round(answer_s * 1000),
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "socket.nagle.disable": True,
            }
        )
        self._is_closing = False
        self._thread = threading.Thread(target=self._wait, name="penstock-kafka-produce", daemon=True)
        self._thread.start()

    def send(self, frame: LogFrame, value: bytes) -> None:
        """Have it written, after those before it; the answer is reported."""
        try:
            self._producer.produce(self._topic, value, partition=0, on_delivery=partial(self._answered, frame))
        except BufferError as error:
            self._report(FrameUnanswered(frame, str(error)))
        except KafkaException as error:
            self._answered(frame, error.args[0], None)

    def _answered(self, frame: LogFrame, error: KafkaError | None, message: Message | None) -> None:
        if error is None and message is not None:
            self._report(FrameStands(frame, message.offset() or 0))
        elif error is not None and error.code() in _TOO_LARGE:
            self._report(FrameRefused(frame, error.str()))
        else:
            self._report(FrameUnanswered(frame, error.str() if error is not None else ""))

    def _wait(self) -> None:
        while not self._is_closing:
            self._producer.poll(POLL_S)

    def close(self, timeout_s: float) -> None:
        """Wait for what is under way, but not for longer; then nothing is reported any more."""
        self._is_closing = True
        self._thread.join()
        self._producer.flush(timeout_s)
        self._producer.purge()
        self._producer.flush(0)
