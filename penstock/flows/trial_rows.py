"""A row of `penstock flow test`: what a flow would make of one message."""

from __future__ import annotations

from typing import Any, Final

SHOWN_BYTES: Final = 200  # of a payload


def new_row(topic: str) -> dict[str, Any]:
    return {"topic": topic, "outcome": "sent", "becomes": "", "payload": "", "why": ""}


def becomes(topic: str, payload: bytes) -> dict[str, str]:
    return {"becomes": topic, "payload": payload[:SHOWN_BYTES].decode(errors="replace")}
