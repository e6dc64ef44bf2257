"""The settings of tracing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TracingSettings:
    endpoint: str | None = field(
        default=None,
        metadata={
            "doc": "Where spans go: the OTLP/HTTP address of an OpenTelemetry collector, such as "
            "http://127.0.0.1:4318/v1/traces; unset: no tracing. Needs the extra `tracing`.",
            "shape": "http://HOST:PORT/PATH or https://HOST:PORT/PATH",
            "pattern": r"https?://[^\s/@]+(/\S*)?",
        },
    )
    sample_ratio: float = field(
        default=0.01,
        metadata={
            "doc": "Which part of the messages that carry no `traceparent` begin a trace. Messages with a sampled "
            "`traceparent` are traced in any case, those with another one are not.",
            "at_least": 0,
            "at_most": 1,
        },
    )
    service_name: str = field(default="penstock", metadata={"doc": "The attribute `service.name` of the spans."})
    messages_per_s: int = field(
        default=100,
        metadata={
            "doc": "At most so many messages a second are traced by a process, whatever they carry; others pass "
            "unchanged.",
            "at_least": 1,
            "at_most": 100_000,
        },
    )
    queue_spans: int = field(
        default=2_048,
        metadata={
            "doc": "At most so many ended spans wait for the collector; others are dropped.",
            "at_least": 16,
            "at_most": 1_000_000,
        },
    )
    timeout_s: int = field(
        default=10,
        metadata={"doc": "How long a request to the collector may take.", "at_least": 1, "at_most": 600},
    )
