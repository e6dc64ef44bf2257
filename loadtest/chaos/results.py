"""The results of a chaos run: a verdict, JSON, Markdown."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec

from loadtest.errors import LoadTestError
from loadtest.machine import Machine


class Done(msgspec.Struct, frozen=True):
    """One finished step of the plan."""

    at_s: float
    faults: list[str]
    recovery_s: float | None
    """Seconds from the end of its last fault until every client was served again; null: never."""

    def __str__(self) -> str:
        served = "NOT served again" if self.recovery_s is None else f"served again after {self.recovery_s:.2f} s"
        return f"{clock(self.at_s)}  {'; '.join(self.faults)}: {served}"


class Memory(msgspec.Struct):
    """Anonymous memory in bytes (without mapped files)."""

    start: int
    end: int
    peak: int


class Chaos(msgspec.Struct):
    """A run: its inputs, its steps, its findings."""

    command: str
    deployment: str
    seed: int
    means: list[str]
    """The means by which faults are made here."""
    left_out: dict[str, str]
    machine: Machine
    rate: int
    lasted_s: float = 0.0
    done: list[Done] = []
    counts: dict[str, int] = {}
    memory: dict[str, Memory] = {}
    complaints: list[str] = []

    @property
    def faults(self) -> int:
        return sum(len(step.faults) for step in self.done)

    @property
    def recoveries_s(self) -> list[float]:
        return [step.recovery_s for step in self.done if step.recovery_s is not None]

    def verdict(self) -> str:
        if self.complaints:
            return f"BROKEN after {self.faults} faults:\n" + "\n".join(f"  {each}" for each in self.complaints)
        count = self.counts
        recovered = self.recoveries_s or [0.0]
        return (
            f"kept: {self.faults} faults in {clock(self.lasted_s)}; {count.get('sent', 0):,} messages sent, "
            f"{count.get('acknowledged', 0):,} acknowledged, {count.get('refused', 0):,} refused; "
            f"{count.get('delivered', 0):,} deliveries; none lost that was acknowledged, none of QoS 2 repeated, "
            f"none out of order; served again after {median(recovered):.2f} s (median), {max(recovered):.2f} s at most"
        )

    def markdown(self) -> str:
        lines = [f"# Chaos: seed {self.seed}", "", f"`{self.command}`", "", self.verdict(), ""]
        lines += [f"{self.deployment}; {self.rate} messages/s. {'; '.join(self.means)}."]
        lines += [f"Left out: {kind} ({why})." for kind, why in self.left_out.items()]
        lines += [f"{self.machine.processor}, {self.machine.cores} cores, {self.machine.system}.", ""]
        lines += ["| memory (MiB) | at the start | at the end | most |", "|---|---|---|---|"]
        lines += [
            f"| {name} | " + " | ".join(f"{each >> 20}" for each in (found.start, found.end, found.peak)) + " |"
            for name, found in self.memory.items()
        ]
        lines += ["", "| at | faults | served again after (s) |", "|---|---|---|"]
        for step in self.done:
            recovery = "never" if step.recovery_s is None else f"{step.recovery_s:.2f}"
            lines.append(f"| {clock(step.at_s)} | {'; '.join(step.faults)} | {recovery} |")
        return "\n".join([*lines, ""])


def write(path: Path, text: bytes) -> None:
    """Write a file. Raises LoadTestError."""
    try:
        path.write_bytes(text)
    except OSError as error:
        raise LoadTestError(f"{path}: {error.strerror}; name a file that can be written") from None


def as_json(chaos: Chaos) -> bytes:
    return msgspec.json.format(msgspec.json.encode(chaos), indent=1)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
