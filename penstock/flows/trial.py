"""`penstock flow test`: what flows would do with the newest messages. It reads, and sends nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from lightqueue.queues.matching import has_wildcard
from lightqueue.queues.table import level_of
from notify.links.address import StoreAddress
from penstock.config.settings import Settings
from penstock.errors import UsageError
from penstock.flows.definition import Flow, read_flows
from penstock.flows.errors import Unfit
from penstock.flows.events import event_of
from penstock.flows.process import client_of, in_file, runner_of, source_of, store_address
from penstock.flows.sink import sink_of
from penstock.flows.trial_rows import becomes, new_row
from penstock.sdk.client import Client
from penstock.sdk.message import Message

LOOKED_BACK: Final = (timedelta(minutes=1), timedelta(hours=1), timedelta(days=1), None)
"""How far, until there are enough messages; each time what lies in between has few."""


def trials(settings: Settings, file: Path, name: str | None, count: int) -> list[dict[str, Any]]:
    """Of each flow, or of one. Raises UsageError, ClientError."""
    flows = [flow for flow in read_flows(file) if name in (None, flow.name)]
    if not flows:
        raise UsageError(f"{file}: there is no flow {name}; see which names stand behind [flow.")
    address = store_address(settings)
    return asyncio.run(_trials(settings, address, file, flows, count))


async def _trials(
    settings: Settings, address: StoreAddress, file: Path, flows: list[Flow], count: int
) -> list[dict[str, Any]]:
    async with client_of(settings, address) as client:
        with in_file(file):
            for flow in flows:
                if flow.is_from_kafka or flow.is_from_amqp or flow.is_from_mqtt:
                    runner_of(flow, client, "")
                else:
                    await sink_of(flow, client, source_of(address)).close()  # it judges the place
        return [await _trial_of(flow, client, count) for flow in flows]


async def _trial_of(flow: Flow, client: Client, count: int) -> dict[str, Any]:
    if flow.is_from_amqp or flow.is_from_mqtt:
        return _trial(flow, [])  # looking at a message there would be a delivery
    if not flow.is_from_kafka:
        return _trial(flow, [_row(flow, message) for message in await _newest(client, flow.said.from_, count)])
    from penstock.flows.sources.trial import rows_of_records

    return _trial(flow, await rows_of_records(flow, count))


async def _newest(client: Client, topic_filter: str, count: int) -> list[Message]:
    """The newest messages, the oldest of them first."""
    newest: deque[Message] = deque(maxlen=count)
    for back in LOOKED_BACK:
        newest.clear()
        async for message in client.read(topic_filter, start="earliest" if back is None else back, stop="now"):
            newest.append(message)
        if len(newest) == count:
            break
    return list(newest)


def _trial(flow: Flow, rows: list[dict[str, Any]]) -> dict[str, Any]:
    outcomes = [row["outcome"] for row in rows]
    return {
        "flow": flow.name,
        "from": flow.said.from_,
        "to": flow.said.to,
        "looked_at": len(rows),
        "passed": outcomes.count("sent"),
        "left_out": outcomes.count("left out"),
        "dead": outcomes.count("dead letter"),
        "begins": _begins(flow),
        "messages": rows,
    }


def _row(flow: Flow, message: Message) -> dict[str, Any]:
    row = new_row(message.topic)
    try:
        if flow.where is not None and not flow.where.holds(message):
            return row | {"outcome": "left out"}
        event = event_of(flow, message)
    except Unfit as error:
        return row | {"outcome": "dead letter", "why": str(error)}
    return row | becomes(event.topic, event.payload)


def _begins(flow: Flow) -> str:
    """Where a flow begins that the store does not know yet."""
    topic_filter = flow.said.from_
    if flow.said.start:
        return f"at {flow.said.start}"
    if flow.is_from_amqp:
        return "with what the queue has; a trial takes nothing out of it"
    if flow.is_from_mqtt:
        return "with what comes, and what is retained, once it has subscribed; a trial does not"
    if flow.is_from_kafka:
        return "with the earliest record that Kafka has"
    if not has_wildcard(topic_filter) or level_of(topic_filter) is not None:
        return "with the earliest message that the store has"
    return "now: only a topic and LEVEL/# have a queue of all that was stored"
