"""What a process of a server knows of itself; penstock/servers/facts.py fills it in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from store.figures import Reading


class ServerFacts(Protocol):
    """Called from the loop."""

    @property
    def version(self) -> str: ...

    @property
    def started_ms(self) -> int:
        """Unix time."""

    @property
    def settings(self) -> str:
        """The settings in force as a JSON object, without secrets."""

    def health(self) -> str:
        """What an operator should look at, although the process works; empty: nothing."""

    def unready(self) -> str:
        """Why clients should not be sent here now; empty if they may be."""

    def readings(self) -> Iterator[list[Reading]]:
        """The figures of /metrics, in steps."""
