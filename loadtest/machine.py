"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec
import psutil


class Machine(msgspec.Struct, frozen=True):
    processor: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    load_average: float
    """Over the minute before; other load makes the figures worse."""

    @classmethod
    def here(cls) -> Machine:
        return cls(
            processor=_processor(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=psutil.virtual_memory().total,
            system=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            load_average=round(os.getloadavg()[0], 1),
        )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
