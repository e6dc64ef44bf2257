"""The settings of flows: which file has them, and who they are at the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FlowsSettings:
    file: Path | None = field(
        default=None,
        metadata={
            "doc": "TOML file with flows: messages on to HTTP, files and other stores. `penstock serve` starts a "
            "process for them. Needs `pip install penstock[flows]`."
        },
    )
    user: str = field(
        default="",
        metadata={"doc": "User that the flows are, of a store that judges what users do. Empty: an anonymous client."},
    )
    password_file: Path | None = field(default=None, metadata={"doc": "File with that user's password."})
