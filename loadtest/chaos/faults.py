"""Begins and ends each kind of fault on a deployment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from loadtest.chaos import packets
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.disk import SmallDisk
from loadtest.chaos.packets import PacketLoss
from loadtest.chaos.part import Part
from loadtest.chaos.plan import EVERYTHING, KINDS, REDIS, REDIS_LINK, SERVER, STORE, STORE_LINKS, Fault
from loadtest.chaos.wire import Wire
from loadtest.chaos.wrong_clock import WrongClock
from loadtest.errors import LoadTestError

RESTART_S = 60
"""Seconds for which a process that another fault keeps from starting is started again."""


class ChaosProcess(Protocol):
    """A process of Penstock, or Redis."""

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Equipment:
    """The machine's means for faults; `left_out` says why a kind is not possible here."""

    def __init__(self, folder: Path, disk_bytes: int) -> None:
        self.disk = SmallDisk(folder / "disk", disk_bytes)
        self.packets = PacketLoss()
        self.clock: WrongClock | None = None
        self.left_out: dict[str, str] = {}
        try:
            self._begin(folder)
        except BaseException:  # Ctrl-C, say
            self.close()
            raise

    def _begin(self, folder: Path) -> None:
        if fault := self.disk.mount():
            self.left_out |= dict.fromkeys(("full-disk", "slow-disk"), fault)
        elif fault := self.disk.why_never_slow():
            self.left_out["slow-disk"] = fault
        if fault := packets.why_not():
            self.left_out |= dict.fromkeys(("loss", "partition"), fault)
        try:
            self.clock = WrongClock(folder, 0)
        except LoadTestError as error:
            self.left_out["clock"] = str(error)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(name for name in KINDS if name not in self.left_out)

    def close(self) -> None:
        self.disk.close()


class Faults:
    """Begins and ends faults. The blocking work is done in threads."""

    def __init__(self, cluster: Cluster, equipment: Equipment, clocks: Mapping[str, WrongClock]) -> None:
        """`clocks`: by part name."""
        self._cluster = cluster
        self._equipment = equipment
        numbers = range(1, len(cluster.gateways) + 1)
        self._processes: dict[str, ChaosProcess] = {STORE: cluster.store, SERVER: cluster.store}
        self._processes |= {f"gateway {i}": cluster.gateways[i - 1] for i in numbers}
        self._wires = {f"gateway {i} to store": [cluster.wires[i - 1]] for i in numbers}
        self._wires[STORE_LINKS] = cluster.wires
        self._clocks = {f"gateway {i}": clocks.get(f"gateway-{i - 1}") for i in numbers}
        self._clocks |= dict.fromkeys((STORE, SERVER), clocks.get("store"))
        self._ports = {f"clients to gateway {i}": cluster.ports[i - 1] for i in numbers}
        self._ports[f"clients to {SERVER}"] = cluster.ports[0]
        if cluster.has_redis:
            self._processes[REDIS] = cluster.redis
            self._wires[REDIS_LINK] = [cluster.redis_wire]

    async def begin(self, fault: Fault) -> None:
        await asyncio.to_thread(self._begin, fault)

    async def end(self, fault: Fault) -> None:
        await asyncio.to_thread(self._end, fault)

    def _begin(self, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                for process in self._of(fault.target):
                    process.kill()
            case "term":
                self._part(fault.target).terminate()
            case "stop":
                self._processes[fault.target].pause()
            case "cut" | "silence" | "delay":
                for wire in self._wires[fault.target]:
                    _disturb(wire, fault)
            case "partition" | "loss":
                for port in self._ports_of(fault.target):
                    self._equipment.packets.lose(port, fault.amount or 100)
            case "full-disk":
                self._equipment.disk.fill(fault.amount)
            case "slow-disk":
                self._equipment.disk.slow(self._cluster.store.process.pid, fault.amount)
            case _:
                self._set_clock(fault.target, fault.amount)

    def _end(self, fault: Fault) -> None:
        match fault.kind:
            case "kill" | "term":
                for process in self._of(fault.target):
                    _start(process)
            case "stop":
                self._processes[fault.target].resume()
            case "cut" | "silence" | "delay":
                for wire in self._wires[fault.target]:
                    wire.mend()
            case "partition" | "loss":
                for port in self._ports_of(fault.target):
                    self._equipment.packets.lose(port, 0)
            case "full-disk" | "slow-disk":
                self._equipment.disk.mend()
            case _:
                self._set_clock(fault.target, 0)

    def _of(self, target: str) -> Sequence[ChaosProcess]:
        """The processes of a target, the store first, since the others connect to it."""
        if target == EVERYTHING:
            return [self._cluster.store, *self._cluster.gateways]
        return [self._processes[target]]

    def _part(self, target: str) -> Part:
        part = self._processes[target]
        if not isinstance(part, Part):
            raise LoadTestError(f"{target} is not ours to end")
        return part

    def _ports_of(self, target: str) -> list[int]:
        if target in self._ports:
            return [self._ports[target]]
        return [wire.port for wire in self._wires[target]]

    def _set_clock(self, target: str, ahead_s: int) -> None:
        if clock := self._clocks[target]:
            clock.set(ahead_s)


def _disturb(wire: Wire, fault: Fault) -> None:
    match fault.kind:
        case "cut":
            wire.cut()
        case "silence":
            wire.silence()
        case _:
            wire.delay(fault.amount / 1_000)


def _start(process: ChaosProcess) -> None:
    """Start a process as a supervisor would: again, if it ends at once. Raises RuntimeError if it never comes up."""
    deadline_s = time.monotonic() + RESTART_S
    while True:
        try:
            process.start()
        except RuntimeError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)
        else:
            return
