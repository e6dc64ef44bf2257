"""An OpenTelemetry collector for tests: takes OTLP over HTTP, in protobuf, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 30


@dataclass(frozen=True)
class CollectedSpan:
    """A span as it was exported; identifiers in hexadecimal digits, `parent` empty for a root."""

    name: str
    trace: str
    span: str
    parent: str
    role: str
    service: str
    attributes: dict[str, str | int]
    kind: int
    status: int
    began_ns: int
    ended_ns: int
    tracestate: str


class OtlpCollector:
    """Listens from its construction on. `holds`: while it is set, requests get no answer."""

    def __init__(self) -> None:
        self._spans: list[CollectedSpan] = []
        self._changed = threading.Condition()
        self.requests = 0
        self.holds = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector._changed:
                    collector.requests += 1
                    collector._changed.notify_all()
                while collector.holds.wait(0) and not collector._closed.wait(0.05):
                    pass
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self._closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    def _take(self, request: ExportTraceServiceRequest) -> None:
        found = list(_spans(request))
        with self._changed:
            self._spans += found
            self._changed.notify_all()

    @property
    def spans(self) -> list[CollectedSpan]:
        with self._changed:
            return list(self._spans)

    def wait_until(self, holds: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """The spans, once this holds of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self._spans), WAIT_S), self._spans
            return list(self._spans)

    def wait_for_requests(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= count, WAIT_S)


def _spans(request: ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    for resource_spans in request.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        for scope in resource_spans.scope_spans:
            for span in scope.spans:
                yield CollectedSpan(
                    name=span.name,
                    trace=span.trace_id.hex(),
                    span=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    role=str(resource.get("penstock.role", "")),
                    service=str(resource.get("service.name", "")),
                    attributes=_attributes(span.attributes),
                    kind=span.kind,
                    status=span.status.code,
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    tracestate=span.trace_state,
                )


def _attributes(found: object) -> dict[str, str | int]:
    return {
        each.key: each.value.int_value if each.value.HasField("int_value") else each.value.string_value
        for each in found  # type: ignore[attr-defined]  # a repeated field, for which there are no types
    }


@contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    collector = OtlpCollector()
    try:
        yield collector
    finally:
        collector.close()
