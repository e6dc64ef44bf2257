"""The connections of a gateway: what they share, and what happens when one of them opens, pauses or ends."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from gateway.access.connection_limits import ConnectionLimits
from gateway.access.relief import Relief
from gateway.clients.admission import Admission
from gateway.clients.packet_rules import PacketRules
from gateway.mqtt.codec_primitives import Limits
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.answers import MOST_REASON_CHARACTERS
from gateway.sessions.audit import note_left, note_opened
from gateway.sessions.connection import Connection, Phase
from gateway.sessions.connection_table import ConnectionTable
from gateway.sessions.core import Core
from store.audit import AuditEvent

READ_BUFFER_BYTES = 256 << 10


class Connections:
    """Owner of all connections. Each connection tells it what happens to the connection."""

    def __init__(
        self,
        core: Core,
        table: ConnectionTable,
        limits: ConnectionLimits,
        relief: Relief,
        admission: Admission,
        rules: PacketRules,
    ) -> None:
        self.table, self.limits, self.rules, self.relief = table, limits, rules, relief
        self.settings, self.turn, self.deadlines = core.settings, core.turn, core.deadlines
        self.read_buffer = read_buffer = bytearray(READ_BUFFER_BYTES)
        self.get_buffer: Callable[[int], bytearray] = lambda _: read_buffer
        self.packet_limits = Limits(core.settings.max_user_properties, core.settings.max_filters_per_packet)
        self.clogged, self.unclogged = relief.clogged, relief.unclogged
        self._is_stopping = False  # no new connection is let in
        self.bad_input = Counter[str]()  # by reason code
        self.turned_away = Counter[str]()  # connections that ended before they had a session, by reason
        self._store, self._events, self._audit, self._scheduler = core.store, core.events, core.audit, core.scheduler
        self._admission = admission
        self._held: list[Connection] = []  # not read from while the store is congested
        self._resting: deque[Callable[[], object]] = deque()  # calls that go on with large input
        self._goes_on = False  # the loop's next turn goes on with `_resting`
        # Connections that published to a crowd, and the count of links that must be sent to before they go on.
        self._crowding: deque[tuple[int, list[Connection]]] = deque()

    # --- coming and going

    def arrived(self, connection: Connection) -> None:
        """A socket was accepted."""
        table = self.table
        table.add(connection, self.turn.now_s)
        self.limits.add(connection)
        limit = self.limits.exceeded(table.connections, connection.entrance, connection.source)
        if self._is_stopping:
            reason = "the server is stopping"
            self.turned_away["stopping"] += 1
            self._events.warning("limit", "%s: refused, %s", connection.peer, reason)
            self._audit.note(AuditEvent.REFUSED, address=connection.peer, reason=reason)
            connection.close(None)
        elif limit:
            self.limits.refuse(connection.peer, limit)
            connection.close(None)

    def opened(self, connection: Connection) -> None:
        """A connection has its session, and its CONNACK is written."""
        self.table.opened(connection)
        who = f" with the certificate of {connection.peer_identity}" if connection.peer_identity else ""
        told, peer = "client %s connected from %s%s", connection.peer
        self._events.info("connected", told, connection.session.client_id, peer, who)
        note_opened(self._audit, connection, peer, who.strip())
        self._admission.opened(connection)

    def left(self, connection: Connection, why: str, reason_code: ReasonCode | None) -> None:
        """A connection ended; called once for each. `reason_code`: with which this side ended it."""
        self.table.remove(connection)
        self.unclogged(connection)
        if connection.session is not None:
            self._events.info("disconnected", "client %s disconnected: %s", connection.session.client_id, why)
            note_left(self._audit, connection, why, reason_code)
        self._admission.left(connection)

    def lost(self, connection: Connection) -> None:
        """Stop counting the connection for its address: its socket is closed, perhaps long after its end."""
        self.limits.remove(connection)

    def lost_messages(self, connection: Connection, number: int) -> None:
        text = "client %s misses %d messages: their part of the log is damaged or gone, see penstock_log_lost_bytes"
        self._events.warning("lost", text, connection.client_id, number)

    def count_bad_input(self, connection: Connection, error: ProtocolError) -> None:
        self.count_bad_start(connection.peer, error, connection.phase is not Phase.NEW)

    def count_bad_start(self, peer: str, error: ProtocolError, is_open: bool = False) -> None:
        """Log and count bad input. The end of a connection that `is_open` is audited elsewhere."""
        if not is_open:
            self.turned_away[error.reason_code.name.lower()] += 1
            self._audit.note(AuditEvent.REFUSED, address=peer, reason=error.message)
        self.bad_input[error.reason_code.name.lower()] += 1
        message = error.message[:MOST_REASON_CHARACTERS]
        self._events.warning("input", "%s: %s (%s)", peer, message, error.reason_code.name)

    def stop(self, reason_code: ReasonCode | None) -> None:
        """Let no connection in any more, and close those that have no session yet."""
        self._is_stopping = True
        self.close_new(reason_code)

    def close_new(self, reason_code: ReasonCode | None) -> None:
        """Close the connections that have no session yet."""
        for connection in list(self.table.new):
            connection.close(reason_code)

    # --- waiting

    @property
    def congested(self) -> bool:
        """The store has more to do than it can, so publishers wait."""
        return self._store.congested

    def hold_back(self, connection: Connection) -> None:
        """Read from this connection again once the store is not congested any more."""
        self._held.append(connection)

    def rest(self, go_on: Callable[[], object]) -> None:
        """Call `go_on` in a later turn: the connection has sent so much that others come first."""
        self._resting.append(go_on)
        self.turn.request()

    def _hold_crowding(self) -> None:
        """Hold back connections that published to a crowd until the crowd has been sent what was published so far.

        Other connections do not wait.
        """
        turn, waiting = self.turn, self._crowding
        if turn.crowding:
            came = turn.collect_crowding()
            waiting.append((turn.crowd_put, came))
            if turn.crowded:
                for connection in came:
                    _hold_for_crowd(connection)
        while waiting:
            turn.crowd_awaited = waiting[0][0]
            if not turn.crowd_is_served:
                break
            for connection in waiting.popleft()[1]:
                _let_go_on(connection)

    def turn_ended(self) -> None:
        """Let waiting connections go on, if they can. Call this at the end of a turn."""
        if self._crowding or self.turn.crowding:
            self._hold_crowding()
        if self._held and not self._store.congested:
            held, self._held = self._held, []
            for connection in held:
                connection.listen_again()
        if self._resting and not self._goes_on:
            self._goes_on = True
            self._scheduler.soon(self._go_on_resting)

    def _go_on_resting(self) -> None:
        """Let resting connections go on, the longest-waiting one first, until the turn has done enough work."""
        self._goes_on = False
        for _ in range(len(self._resting)):
            self._resting.popleft()()
            if self.turn.has_worked_enough:
                break
        self.turn.request()


def _hold_for_crowd(connection: Connection) -> None:
    if connection.transport is not None and not connection.closing:
        connection.held_for_crowd = True
        connection.transport.pause_reading()


def _let_go_on(connection: Connection) -> None:
    """Read from a connection again whose crowd has been sent everything."""
    connection.crowding = connection.held_for_crowd = False
    if connection.rested_for_crowd:
        connection.rested_for_crowd = False
        connection.on_much()
    else:
        connection.resume_reading()
