"""The gateways that are processes of their own: those that answer, and those that did not for an hour at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from penstock.console.observe.growth import Grown
from penstock.console.observe.look import CONNECTIONS, RECEIVED, SENT, SERVER, ProcessLook, ServerLook

AWAY_KEPT_S = 3_600.0
MOST_KEPT = 256


class GatewayPresence(StrEnum):
    """How a gateway is, for people."""

    HERE = "connected"
    SILENT = "does not answer"
    AWAY = "away"


@dataclass(slots=True)
class GatewayState:
    """`process`: as of `seen_ms` (Unix time), its last report; None: it never answered, as one of an older release."""

    name: str
    presence: GatewayPresence
    process: ProcessLook | None
    grown: Grown | None
    seen_s: float
    seen_ms: int

    @property
    def is_here(self) -> bool:
        return self.presence is GatewayPresence.HERE

    @property
    def received_rate(self) -> float | None:
        return self.grown.rate(RECEIVED) if self.grown is not None else None

    @property
    def sent_rate(self) -> float | None:
        return self.grown.rate(SENT) if self.grown is not None else None

    @property
    def clients(self) -> float | None:
        return self.process.figures.total(CONNECTIONS) if self.process is not None else None


class Gateways:
    """Owner of these states."""

    def __init__(self, time_ms: Callable[[float], int]) -> None:
        """`time_ms`: the Unix time of a time on the loop's clock."""
        self._time_ms = time_ms
        self._states: dict[str, GatewayState] = {}

    def seen(self, look: ServerLook, grown: dict[str, Grown]) -> None:
        """`grown`: lately, by process."""
        for name in [name for name, state in self._states.items() if look.at_s - state.seen_s > AWAY_KEPT_S]:
            del self._states[name]
        for name, process in look.processes.items():
            if name != SERVER:
                state = GatewayState(name, GatewayPresence.HERE, process, grown.get(name), *self._times(look))
                self._set(name, state)
        for name in look.silent:
            if name not in self._states:
                self._set(name, GatewayState(name, GatewayPresence.SILENT, None, None, *self._times(look)))
        for name, state in self._states.items():
            if name not in look.processes:
                state.presence = GatewayPresence.SILENT if name in look.silent else GatewayPresence.AWAY

    def _times(self, look: ServerLook) -> tuple[float, int]:
        return look.at_s, self._time_ms(look.at_s)

    def _set(self, name: str, state: GatewayState) -> None:
        """The one that was not seen for longest gives way."""
        if name not in self._states and len(self._states) >= MOST_KEPT:
            del self._states[min(self._states, key=lambda each: self._states[each].seen_s)]
        self._states[name] = state

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def all(self) -> list[GatewayState]:
        """Those that are here first."""
        return sorted(self._states.values(), key=lambda state: (not state.is_here, state.name))
