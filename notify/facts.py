"""Facts about a server process, for operators; penstock/servers/facts.py fills them in."""

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
        """The problem that an operator should look at although the process works; empty: none."""

    def unready(self) -> str:
        """The reason why clients should not be sent here now; empty if they may be."""

    def readings(self) -> Iterator[list[Reading]]:
        """The figures of /metrics, in steps."""
