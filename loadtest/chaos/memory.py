"""Checks the memory of the deployment's processes, from /proc."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from loadtest.chaos.results import Memory

FACTOR, SLACK_BYTES = 1.5, 48 << 20
"""A process may have FACTOR times its memory at the start, and SLACK_BYTES more: caches fill, and are bounded."""


def own_bytes(pid: int) -> int:
    """Anonymous memory of a process in bytes; 0 if it is gone."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def look(memory: dict[str, Memory], pids: Mapping[str, int]) -> None:
    """Record the current memory of each process."""
    for name, pid in pids.items():
        if has := own_bytes(pid):
            known = memory.setdefault(name, Memory(has, has, has))
            known.end, known.peak = has, max(known.peak, has)


def complaints(memory: Mapping[str, Memory]) -> list[str]:
    return [
        f"{name}: memory grew from {found.start >> 20} to {found.end >> 20} MiB"
        for name, found in memory.items()
        if found.end > FACTOR * found.start + SLACK_BYTES
    ]
