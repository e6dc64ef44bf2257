"""Memory of the parts, by what the kernel says of each process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from loadtest.chaos.results import Memory

FACTOR, SLACK_BYTES = 1.5, 48 << 20
"""A part may have so many times what it had at the start, and so much besides: caches fill, and have bounds."""


def own_bytes(pid: int) -> int:
    """Anonymous memory; 0 if the process is gone."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def look(memory: dict[str, Memory], pids: Mapping[str, int]) -> None:
    """Write down what each has by now."""
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
