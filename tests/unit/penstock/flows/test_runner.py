"""The gate of a flow whose sink is away: one request tries it, and only an answer to that one opens it again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from penstock.flows.definition import Flow, FlowSource
from penstock.flows.errors import SinkAway
from penstock.flows.events import FlowEvent, event_of
from penstock.flows.runner import FlowRunner
from penstock.sdk.client import Client
from penstock.sdk.delivery import Delivery
from penstock.sdk.subscription import Subscription
from tests.unit.penstock.flows.messages import message


class HeldSink:
    """Answers each request when it is told to."""

    most = 1

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, asyncio.Future[None]] = {}
        self.came = asyncio.Event()

    async def open(self, group: Subscription) -> None: ...

    async def close(self) -> None: ...

    async def send(self, events: Sequence[FlowEvent]) -> None:
        topic = events[0].topic
        self.asked.append(topic)
        self.came.set()
        self.answers[topic] = asyncio.get_running_loop().create_future()
        await self.answers[topic]


class Settled:
    """A delivery that knows what was said of it."""

    deliveries = 1

    def __init__(self) -> None:
        self.is_acked = False

    def ack(self) -> None:
        self.is_acked = True


async def steps() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_answer_to_an_older_request_does_not_open_the_gate() -> None:
    async def go() -> None:
        flow = Flow("alarms", msgspec.convert({"from": "plant/#", "to": "http://h"}, FlowSource))
        sink = HeldSink()
        runner = FlowRunner(flow, Client("unix:///nowhere"), sink, chance=lambda: 0.0)
        deliveries = {name: Settled() for name in ("a", "b", "c")}

        def send(name: str) -> asyncio.Task[Any]:
            item = cast(Delivery, deliveries[name]), event_of(flow, message(topic=name))
            return asyncio.create_task(runner._send([item]))

        tasks = [send("a"), send("b")]
        await steps()
        sink.answers["b"].set_exception(SinkAway("busy", after_s=0.05))
        await steps()
        tasks.append(send("c"))
        sink.answers["a"].set_result(None)
        await steps()
        assert deliveries["a"].is_acked
        assert runner.gate.away == "busy"
        assert sink.asked == ["a", "b"]
        sink.came.clear()
        await sink.came.wait()
        assert sink.asked[2:] == ["b"]
        sink.answers["b"].set_result(None)
        await steps()
        assert runner.gate.away == ""
        assert sink.asked == ["a", "b", "b", "c"]
        sink.answers["c"].set_result(None)
        await asyncio.gather(*tasks)
        assert all(each.is_acked for each in deliveries.values())

    asyncio.run(asyncio.wait_for(go(), 30))
