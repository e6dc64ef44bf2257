"""Spans of messages for OpenTelemetry: published, stored, delivered (docs/tracing.md). Off by default."""
