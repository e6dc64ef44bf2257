"""Lines of OpenTelemetry about failed exports: one a minute, with the remedy."""

import logging

import pytest

from penstock.tracing.export_log import AGAIN_S, ExportLog


def test_failed_exports_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    handler = ExportLog("http://c:4318/v1/traces", lambda: now_s)
    failed = logging.LogRecord("opentelemetry.sdk", logging.WARNING, "f", 1, "no\nroute %s", ("x" * 1_000,), None)
    with caplog.at_level(logging.WARNING, "penstock.tracing"):
        for _ in range(5):
            handler.emit(failed)
        now_s += AGAIN_S
        handler.emit(failed)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("spans are not exported to http://c:4318/v1/traces: no route xxx")
    assert first.endswith("; check tracing.endpoint")
    assert "\n" not in first
    assert len(first) < 450
    assert "(4 such events before)" in second
