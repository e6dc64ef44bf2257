"""One look at a server: the process that was asked, and its gateways where they are processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.console.observe.figures import Figures
from penstock.console.store.operator import OperatorConnection
from store.wire.operator_messages import ServerShown

RECEIVED, SENT, STORED = (
    "penstock_messages_received_total",
    "penstock_messages_sent_total",
    "penstock_stored_messages_total",
)
CONNECTIONS = "penstock_connections"
GROUP_LAG, READER_LAG, DISK_FREE = "penstock_group_lag", "penstock_reader_lag_bytes", "penstock_disk_free_bytes"
SERVER = ""
"""The name of the process that was asked; gateways have names that are not empty."""


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """A process at this time. `started_ms`: Unix time."""

    figures: Figures
    started_ms: int = 0
    version: str = ""
    unready: str = ""

    @property
    def is_gateway(self) -> bool:
        return self.figures.total(SENT) is not None


@dataclass(frozen=True, slots=True)
class ServerLook:
    """All that answered, by name. `at_s`: on the loop's clock; `silent`: gateways that are known and did not answer."""

    at_s: float
    server: ServerShown
    processes: Mapping[str, ProcessLook]
    silent: tuple[str, ...] = field(default=())

    @property
    def figures(self) -> Figures:
        """Of the process that was asked: it has the store."""
        return self.processes[SERVER].figures


async def look_at(operator: OperatorConnection) -> ServerLook:
    """Raises an OperatorError."""
    shown, samples = await operator.server()
    reports = await operator.gateways()
    processes = {SERVER: ProcessLook(Figures(samples), shown.started_ms, shown.version, shown.unready)}
    silent = []
    for name, report in reports.items():
        if report is None:
            silent.append(name)
        else:
            processes[name] = ProcessLook(Figures(report.figures), report.started_ms, report.version, report.unready)
    return ServerLook(asyncio.get_running_loop().time(), shown, processes, tuple(silent))
