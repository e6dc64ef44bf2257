"""What a flow from Kafka would do with the newest records of its topic."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaException

from penstock.errors import PenstockError
from penstock.flows.definition import Flow
from penstock.flows.errors import Unfit
from penstock.flows.sources.messages import message_of
from penstock.flows.sources.records import KafkaRecord
from penstock.flows.sources.topic import ReaderThread, newest, said_by_kafka, topic_place
from penstock.flows.trial_rows import becomes, new_row


async def rows_of_records(flow: Flow, count: int) -> list[dict[str, Any]]:
    """Of the newest records, the oldest of them first. Raises PenstockError."""
    place = topic_place(flow)
    thread = ReaderThread(place)
    try:
        found = await thread.do(lambda reader: newest(reader, reader.describe().partitions, count))
    except (KafkaException, TimeoutError) as error:
        raise PenstockError(f"flow.{flow.name}: Kafka, topic {place.topic}: {said_by_kafka(error)}") from None
    finally:
        await thread.close()
    return [_row(flow, record) for record in found]


def _row(flow: Flow, record: KafkaRecord) -> dict[str, Any]:
    row = new_row(f"{record.topic}/{record.partition}@{record.offset}")
    try:
        message = message_of(flow, record)
    except Unfit as error:
        return row | {"outcome": "dead letter", "why": str(error)}
    return row | (becomes(*message[:2]) if message is not None else {"outcome": "left out"})
