"""The spans of a process, by OpenTelemetry's SDK, and their export by OTLP in a thread of its own."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.span import TraceState

from penstock.config.tracing_settings import TracingSettings
from penstock.tracing.batches import FoundMessage
from penstock.tracing.export_log import take_over
from penstock.tracing.sampling import RateBound, Sampler
from store.records.records import RecordFlag
from store.records.trace_context import TraceContext
from store.version import VERSION

EXPORTED_AT_ONCE = 512  # spans
EXPORT_EVERY_MS = 1_000
CLOSE_S = 2.0
"""How long a stop waits for the collector to take the last spans."""

Attributes = Mapping[str, str | int]


class Tracing:
    """The spans of one process. Everything but the export takes place in the calling thread, and none of it waits."""

    def __init__(self, settings: TracingSettings, role: str, exporter: SpanExporter | None = None) -> None:
        """`role`: what the process is, `serve`, `store` or `gateway`."""
        self.sampler = Sampler(settings.sample_ratio)
        self.bound = RateBound(settings.messages_per_s)
        resource = Resource.create(
            {
                "service.name": settings.service_name,
                "service.version": VERSION,
                "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
                "penstock.role": role,
            }
        )
        take_over(settings.endpoint or "")
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter or OTLPSpanExporter(endpoint=settings.endpoint, timeout=settings.timeout_s),
                max_queue_size=settings.queue_spans,
                max_export_batch_size=min(EXPORTED_AT_ONCE, settings.queue_spans),
                schedule_delay_millis=EXPORT_EVERY_MS,
                export_timeout_millis=settings.timeout_s * 1_000,
            )
        )
        self._tracer = self._provider.get_tracer("penstock", VERSION)

    def close(self) -> None:
        """Export what is left, for CLOSE_S at most."""
        ending = threading.Thread(target=self._provider.shutdown, name="penstock-tracing-end", daemon=True)
        ending.start()
        ending.join(CLOSE_S)

    def publish(self, message: FoundMessage) -> Span:
        """A client publishes this message: the child of its context, or the beginning of a trace."""
        return self._begin("publish", SpanKind.PRODUCER, message, {"messaging.operation.type": "send"})

    def store(self, message: FoundMessage, began_ns: int, log_offset: int) -> Span:
        """The message is stored at this log_offset. `began_ns`: Unix time."""
        return self._begin("store", SpanKind.INTERNAL, message, {"penstock.log_offset": log_offset}, began_ns)

    def deliver(self, message: FoundMessage, began_ns: int, attributes: Attributes) -> None:
        """The message was handed to subscribers."""
        self._begin("deliver", SpanKind.CONSUMER, message, attributes, began_ns).end()

    def _begin(
        self, name: str, kind: SpanKind, message: FoundMessage, more: Attributes, began_ns: int | None = None
    ) -> Span:
        attributes: dict[str, str | int] = {
            "messaging.system": "penstock",
            "messaging.operation.name": name,
            "messaging.destination.name": message.topic.decode(errors="replace"),
            "messaging.message.body.size": message.payload_bytes,
            "messaging.mqtt.qos": message.flags & RecordFlag.QOS_MASK,
        }
        if message.client_id and name != "deliver":
            attributes["messaging.client.id"] = message.client_id.decode(errors="replace")
        parent = set_span_in_context(NonRecordingSpan(span_context(message.context))) if message.context else None
        return self._tracer.start_span(
            name, context=parent, kind=kind, attributes={**attributes, **more}, start_time=began_ns or time.time_ns()
        )


def span_context(context: TraceContext) -> SpanContext:
    """A message's context in OpenTelemetry's terms."""
    state = TraceState.from_header([context.tracestate]) if context.tracestate else TraceState()
    trace_id, span_id = int(context.trace_id, 16), int(context.span_id, 16)
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(context.flags), trace_state=state)


def context_of(span: Span) -> TraceContext:
    """What a message carries that is a span's child."""
    found = span.get_span_context()
    return TraceContext(f"{found.trace_id:032x}", f"{found.span_id:016x}", int(found.trace_flags))


def fail(span: Span, reason: str) -> None:
    """End a span whose work failed."""
    span.set_status(Status(StatusCode.ERROR, reason))
    span.end()
