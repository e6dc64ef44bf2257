"""The audit log of a real server, as tests read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.mqtt_packet_client import until
from tests.support.server_process import PenstockServer


def audit_files(server: PenstockServer) -> list[Path]:
    """Of all its processes that share its data folder."""
    return sorted(server.data.glob("audit*.jsonl"))


def audit_lines(server: PenstockServer, event: str = "", **fields: str) -> list[dict[str, Any]]:
    """Those with this event and these fields."""
    lines = [json.loads(line) for file in audit_files(server) for line in _complete_lines(file)]
    wanted = {"event": event, **fields} if event else fields
    return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]


def _complete_lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def wait_for_audit(server: PenstockServer, event: str, **fields: str) -> dict[str, Any]:
    """The first line with this event and these fields, once it is there."""
    until(lambda: bool(audit_lines(server, event, **fields)))
    return audit_lines(server, event, **fields)[0]
