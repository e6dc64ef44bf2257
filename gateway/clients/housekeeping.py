"""Periodic work of a gateway: some of it several times a second, some once a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.clients.admission import Admission
from gateway.clients.registry import SessionRegistry
from gateway.delivery.deliverer import Deliverer
from gateway.mqtt._mqtt import Turn, overdue, unsent
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection_table import ConnectionTable
from gateway.sessions.core import Core


class Housekeeping:
    """Calls the periodic callbacks. Each callback takes little time, or works in steps."""

    def __init__(
        self, turn: Turn, at_each_tick: Sequence[Callable[[], object]], once_a_second: Sequence[Callable[[], object]]
    ) -> None:
        self._turn = turn
        self._at_each_tick = tuple(at_each_tick)
        self._once_a_second = tuple(once_a_second)
        self._next_second = 0.0  # of the loop's clock

    def tick(self) -> None:
        """Call every few hundredths of a second, after the turn's clock was set."""
        for due in self._at_each_tick:
            due()
        if self._turn.now_s >= self._next_second:
            self._next_second = self._turn.now_s + 1
            for due in self._once_a_second:
                due()


class SilentConnections:
    """Closes connections that have been silent for too long, and counts what waits for the others."""

    def __init__(
        self, core: Core, table: ConnectionTable, registry: SessionRegistry, deliverer: Deliverer, admission: Admission
    ) -> None:
        self._core = core
        self._table = table
        self._registry = registry
        self._deliverer = deliverer
        self._admission = admission
        self.keep_alive_timeouts = 0
        self.waiting = (
            0  # messages that connected clients have not acknowledged, or were not sent, a second ago at most
        )

    def close(self) -> None:
        """Close clients past 1.5 times their keep alive [MQTT-3.1.2-22], and connections without CONNECT in time."""
        turn = self._core.turn
        silent, stuck = overdue(self._registry.sessions.values(), turn)
        self.waiting = turn.inflight + unsent(self._deliverer.pending.union(stuck))
        for link in silent:
            if link.waiting or link.held:  # the gateway does not read from it, so its silence is not its fault
                link.last_seen_s = turn.now_s
                continue
            self.keep_alive_timeouts += 1
            self._core.events.info("keepalive", "%s: silent for too long", link.peer)
            link.close(ReasonCode.KEEP_ALIVE_TIMEOUT)
        self._close_unconnected()

    def _close_unconnected(self) -> None:
        now_s, most_s, new = self._core.turn.now_s, self._core.settings.connect_timeout_s, self._table.new
        while new:
            connection, since_s = next(iter(new.items()))
            if now_s - since_s < most_s:
                break
            if connection.version:
                self._admission.give_up(connection)
                continue
            late = ProtocolError(ReasonCode.MAXIMUM_CONNECT_TIME, "no CONNECT in time")
            connection.owner.count_bad_input(connection, late)
            connection.close(None)
