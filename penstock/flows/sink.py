"""What a flow leads to, and which kinds there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.flows.definition import AMQP, FUNCTION, KAFKA, MQTT, Flow, without_credentials
from penstock.flows.errors import FlowError
from penstock.flows.events import EventWriter, FlowEvent
from penstock.sdk.client import Client
from penstock.sdk.subscription import Subscription

SCHEMES = (
    "http://, https://, file:///PATH, penstock: or penstock://HOST:PORT, kafka://HOST:PORT/TOPIC, "
    "amqp://HOST/EXCHANGE, mqtt://HOST/PREFIX, python:PACKAGE.MODULE:FUNCTION"
)


class Sink(Protocol):
    """One place that takes events. Its flow owns it."""

    most: int
    """So many events it takes at a time."""

    async def open(self, group: Subscription) -> None:
        """Before the first event; `group`: where they come from. Raises SinkAway, SinkLost."""

    async def send(self, events: Sequence[FlowEvent]) -> None:
        """All of them are there, once it returns. None of them is being sent already; some may have been sent before.

        Raises Unfit or SinkRefused (they are of no use there), SinkFailed, SinkAway, SinkLost.
        """

    async def close(self) -> None: ...


def sink_of(flow: Flow, client: Client, source: str) -> Sink:
    """The sink of a flow. `client`: of its store; `source`: of CloudEvents. Raises FlowError."""
    to = without_credentials(flow.name, "to", flow.said.to)
    scheme = to.partition(":")[0]
    writer = EventWriter(flow, flow.said.source or source)
    if scheme in ("http", "https"):
        from penstock.flows.sinks.http import HttpSink

        return HttpSink(flow, writer)
    if scheme == "file":
        from penstock.flows.sinks.file import FileSink

        return FileSink(flow, writer)
    if scheme in ("penstock", "penstocks"):
        from penstock.flows.sinks.penstock import PenstockSink

        return PenstockSink(flow, client, source)
    if scheme in KAFKA:
        from penstock.flows.sinks.kafka import KafkaSink

        return KafkaSink(flow, writer)
    if scheme in AMQP:
        from penstock.flows.sinks.amqp import AmqpSink

        return AmqpSink(flow, writer)
    if scheme in MQTT:
        from penstock.flows.sinks.mqtt import MqttSink

        return MqttSink(flow, writer)
    if scheme == FUNCTION:
        from penstock.flows.sinks.function import FunctionSink

        return FunctionSink(flow, client, source)
    raise FlowError(flow.name, "to", f"{to!r} is no place for messages", f"say {SCHEMES}")
