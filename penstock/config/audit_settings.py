"""The settings of the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AuditSettings:
    enabled: bool = field(
        default=True,
        metadata={
            "doc": "Keep an audit log of admitted, refused, banned and disconnected clients, and of operators' actions."
        },
    )
    file: Path | None = field(
        default=None,
        metadata={
            "doc": "The audit log; unset: audit.jsonl in the data folder, and none for `penstock gateway`, "
            "which has no such folder."
        },
    )
    aggregate_s: int = field(
        default=1,
        metadata={
            "doc": "Equal events within so long become one line with a count; a SIGKILL loses the events of that time.",
            "at_least": 1,
            "at_most": 3_600,
        },
    )
    max_file_bytes: int = field(
        default=64 * MIB,
        metadata={"doc": "At this size the file is renamed to FILE.1 and a new one begun.", "at_least": 4_096},
    )
    files: int = field(
        default=10,
        metadata={
            "doc": "Files that are kept, the one that is written included; the oldest is deleted.",
            "at_least": 1,
            "at_most": 1_000,
        },
    )
