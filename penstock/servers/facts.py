"""What a process tells operators of itself (ShowServer): the same as its admin endpoint, and its settings."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.config.settings import Settings, as_json
from store.figures import Figure, Reading
from store.version import VERSION

_MEMORY = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()

_OF_PROCESS: tuple[Figure[None], ...] = (
    Figure("process_cpu_seconds_total", "counter", "CPU time of the process.", lambda _: time.process_time()),
    Figure("process_resident_memory_bytes", "gauge", "Resident memory of the process.", lambda _: _resident_bytes()),
)


class ProcessFacts:
    """A ServerFacts (notify/facts.py)."""

    def __init__(
        self,
        settings: Settings,
        readings: Callable[[], Iterator[list[Reading]]],
        unready: Callable[[], str],
        health: Callable[[], str],
    ) -> None:
        self.version = VERSION
        self.started_ms = time.time_ns() // 1_000_000
        self.settings = as_json(settings)
        self.unready = unready
        self.health = health
        self._readings = readings

    def readings(self) -> Iterator[list[Reading]]:
        """With CPU time and memory, named as in /metrics."""
        yield [(figure, figure.read(None)) for figure in _OF_PROCESS]
        yield from self._readings()


def _resident_bytes() -> float:
    """0 where the system does not tell."""
    try:
        return float(_MEMORY.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0.0
