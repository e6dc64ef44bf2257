"""Events as calls of a Python function in a worker process, at least once each. What it returns is published once.

An answer is kept until its messages are in the store, so a function is called again only if it failed, or if this
process or the worker ended. If a worker ends while several calls were under way, these go one at a time until it is
known which of them ends it.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from penstock.flows.definition import FUNCTION, Flow, FlowSource
from penstock.flows.errors import FlowError, SinkAway, SinkFailed, SinkRefused
from penstock.flows.events import FlowEvent
from penstock.flows.functions.frames import Call, CallAnswer, Output
from penstock.flows.functions.process import START_S, WORKER, FunctionProcess, WorkerGone
from penstock.flows.sinks.penstock import PenstockSink
from penstock.sdk.client import Client
from penstock.sdk.subscription import Subscription

MOST: Final = 100  # events that it takes at a time
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_TO = re.compile(rf"{FUNCTION}:({_NAME}):({_NAME})")


class FunctionSink:
    """Owner of a worker process, and of answers whose messages are not stored yet."""

    most = MOST

    def __init__(self, flow: Flow, client: Client, source: str) -> None:
        """Imports the function, in a process of its own. Raises FlowError."""
        found = _TO.fullmatch(flow.said.to)
        if found is None:
            raise FlowError(
                flow.name, "to", f"{flow.said.to!r} names no function", "say python:PACKAGE.MODULE:FUNCTION"
            )
        self._module, self._function = found.groups()
        for field in ("format", "headers", "sign"):
            if getattr(flow.said, field) != getattr(FlowSource("", ""), field):
                raise FlowError(flow.name, field, "it means nothing to a function", "leave it out")
        self._check(flow)
        self._limit_s = flow.said.timeout_s
        self._slots = asyncio.Semaphore(flow.said.concurrency)  # calls at a time of an asynchronous function
        self._store = PenstockSink(flow, client, source, of_function=True)
        self._process: FunctionProcess | None = None
        self._starting = asyncio.Lock()
        self._free = asyncio.Condition()
        self._number = 0
        self._suspects: set[str] = set()  # ids of messages of which one has ended a worker
        self._answers: dict[str, asyncio.Task[list[FlowEvent]]] = {}
        """By message id: calls under way, and what they said that is not stored yet."""

    def _check(self, flow: Flow) -> None:
        command = (sys.executable, "-m", WORKER, self._module, self._function)
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S, check=False)
        except subprocess.TimeoutExpired:
            reason = f"{self._module} is not imported after {START_S:g} s"
            raise FlowError(flow.name, "to", reason, "have it do less when it is imported") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            reason, _, remedy = (lines[-1] if lines else f"its process ended with {done.returncode}").rpartition("; ")
            raise FlowError(flow.name, "to", reason or "it cannot be imported", remedy or "mend it")

    async def open(self, group: Subscription) -> None:
        await self._store.open(group)
        await self._running()

    async def close(self) -> None:
        for task in self._answers.values():
            task.cancel()
        if self._process is not None:
            await self._process.close()
        await self._store.close()

    async def send(self, events: Sequence[FlowEvent]) -> None:
        tasks = [self._answers.get(event.id) or self._begin(event) for event in events]
        await asyncio.wait(tasks)
        faults = [fault for task in tasks if (fault := _fault(task)) is not None]
        if faults:
            for event, task in zip(events, tasks, strict=True):
                if len(events) == 1 or isinstance(_fault(task), SinkAway):
                    self._answers.pop(event.id, None)  # it is to be called again; the others fetch their answers
            raise next((fault for fault in faults if isinstance(fault, SinkAway)), faults[0])
        outputs = [output for task in tasks for output in task.result()]
        try:
            for at in range(0, len(outputs), self._store.most):
                await self._store.send(outputs[at : at + self._store.most])
        except SinkRefused:
            if len(events) == 1:
                self._answers.pop(events[0].id, None)
            raise
        for event in events:
            self._answers.pop(event.id, None)

    def _begin(self, event: FlowEvent) -> asyncio.Task[list[FlowEvent]]:
        task = asyncio.create_task(self._outputs(event))
        self._answers[event.id] = task
        return task

    # --- calling

    async def _outputs(self, event: FlowEvent) -> list[FlowEvent]:
        """What the function returns for an event. Raises SinkFailed, SinkRefused, SinkAway."""
        answer = await self._answer(event)
        if answer.refused:
            raise SinkRefused(answer.refused)
        if answer.failed:
            raise SinkFailed(answer.failed)
        outputs = [_event(event, number, said) for number, said in enumerate(answer.outputs)]
        for output in outputs:
            self._store.check(output)
        return outputs

    async def _answer(self, event: FlowEvent) -> CallAnswer:
        while True:
            process = await self._running()
            if self._suspects:
                await self._turn(event, process)
            try:
                async with self._slots if process.is_async else nullcontext():
                    await process.room()
                    if self._suspects and (event.id not in self._suspects or process.in_hand):
                        continue
                    self._number += 1
                    answer = await process.call(_call(self._number, event))
            except WorkerGone as error:
                if error.is_suspect:
                    self._suspects.add(event.id)
                continue
            except OverflowError as error:
                await self._cleared(event)
                raise SinkRefused(f"the message is too large for a function: {error}") from None
            except SinkFailed:
                await self._cleared(event)
                raise
            await self._cleared(event)
            return answer

    async def _turn(self, event: FlowEvent, process: FunctionProcess) -> None:
        """Wait while others are suspects, or are called: a suspect is called alone."""
        async with self._free:
            while self._suspects and not process.is_gone:
                if event.id in self._suspects and not process.in_hand:
                    return
                await self._free.wait()

    async def _cleared(self, event: FlowEvent) -> None:
        """It is known what a call does."""
        if self._suspects:
            self._suspects.discard(event.id)
            async with self._free:
                self._free.notify_all()

    async def _running(self) -> FunctionProcess:
        """Raises SinkAway."""
        if self._process is not None and not self._process.is_gone:
            return self._process
        async with self._starting:
            if self._process is not None and self._process.is_gone:
                await self._process.close()
                self._process = None
            if self._process is None:
                self._process = await FunctionProcess.started(self._module, self._function, self._limit_s)
            return self._process


def _call(number: int, event: FlowEvent) -> Call:
    payload = bytes(event.payload)
    return Call(number, event.topic, payload, event.key, event.headers, event.id, event.stored_ms, event.content_type)


def _event(event: FlowEvent, number: int, said: Output) -> FlowEvent:
    """What is published: known by the message that it comes from, and its number among those of this message."""
    return event._replace(
        id=f"{event.id}/{number}",
        topic=said.topic,
        payload=said.payload,
        key=said.key,
        content_type=said.content_type,
        headers=said.headers,
    )


def _fault(task: asyncio.Task[list[FlowEvent]]) -> BaseException | None:
    return SinkAway("the flow ends") if task.cancelled() else task.exception()
