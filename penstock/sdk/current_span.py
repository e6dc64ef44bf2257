"""The current span of a program that uses OpenTelemetry, as headers of what it publishes.

A program that does not import OpenTelemetry pays one look-up for it, and needs none of its packages.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from penstock.sdk.outgoing import Headers, PublishOptions
from store.records.trace_context import TRACEPARENT, TRACESTATE, TraceContext

API = "opentelemetry.trace"


def current_headers() -> list[tuple[str, str]]:
    """`traceparent` and `tracestate` of the current span; empty where there is none."""
    api = sys.modules.get(API)
    if api is None:
        return []
    found = api.get_current_span().get_span_context()
    if not found.is_valid:
        return []
    context = TraceContext(f"{found.trace_id:032x}", f"{found.span_id:016x}", int(found.trace_flags))
    state = found.trace_state.to_header()
    return [(TRACEPARENT, context.traceparent), *([(TRACESTATE, state)] if state else [])]


def with_current_span(options: PublishOptions) -> PublishOptions:
    """The options with the current span's headers, unless they have a `traceparent`."""
    added = current_headers()
    if not added:
        return options
    given = _pairs(options.get("headers"))
    if any(name == TRACEPARENT for name, _ in given):
        return options
    return {**options, "headers": [*given, *added]}


def _pairs(headers: Headers | None) -> list[tuple[str, str]]:
    if headers is None:
        return []
    return list(headers.items() if isinstance(headers, Mapping) else headers)
