"""Resources of processes: CPU time and memory, of a broker and of the load generator separately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import psutil


class ResourceUse(NamedTuple):
    """Resources of a process and its children: CPU seconds since each began, resident bytes now."""

    cpu_s: float
    resident_bytes: int


def taken(pids: Iterable[int]) -> ResourceUse:
    cpu_s, resident_bytes = 0.0, 0
    for process in family(pids):
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system
            resident_bytes += process.memory_info().rss
        except psutil.Error:
            continue  # it has ended
    return ResourceUse(cpu_s, resident_bytes)


def listening_at(port: int) -> list[int]:
    """Local processes that listen at a TCP port, as far as visible."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    return sorted(
        {each.pid for each in found if each.pid and each.status == "LISTEN" and each.laddr and each.laddr.port == port}
    )


def family(pids: Iterable[int]) -> set[psutil.Process]:
    """These processes and all their children, as far as they still exist."""
    family: set[psutil.Process] = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            family |= {process, *process.children(recursive=True)}
        except psutil.Error:
            continue
    return family
