"""Spans of messages in programs that use OpenTelemetry (docs/tracing.md). Needs `opentelemetry-api`.

async for delivery in client.subscribe("line/#", group="alarms"):
    with consuming(delivery.message) as span:
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.span import TraceState

from penstock.sdk.message import Message


def span_context_of(message: Message) -> SpanContext | None:
    """The span that published the message; None if it names none."""
    found = message.trace_context
    if found is None:
        return None
    state = TraceState.from_header([found.tracestate]) if found.tracestate else TraceState()
    trace_id, span_id = int(found.trace_id, 16), int(found.span_id, 16)
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(found.flags), trace_state=state)


def context_of(message: Message) -> Context | None:
    """The parent for `tracer.start_as_current_span(..., context=...)`; None, the present context, if it names none."""
    found = span_context_of(message)
    return None if found is None else set_span_in_context(NonRecordingSpan(found))


def links_to(messages: Iterable[Message]) -> list[Link]:
    """For a span of several messages, which has no single parent."""
    found = map(span_context_of, messages)
    return [Link(context) for context in found if context is not None]


@contextmanager
def consuming(message: Message, name: str = "process") -> Iterator[Span]:
    """A span of what is done with a message, the child of the span that published it; the current one in the block.

    Its exceptions are recorded by the span.
    """
    attributes: dict[str, str | int] = {
        "messaging.system": "penstock",
        "messaging.operation.name": name,
        "messaging.operation.type": "process",
        "messaging.destination.name": message.topic,
        "messaging.message.id": message.message_id,
    }
    tracer = get_tracer("penstock.sdk")
    kind = SpanKind.CONSUMER
    with tracer.start_as_current_span(name, context=context_of(message), kind=kind, attributes=attributes) as span:
        yield span
