"""Events of the store for its gateway: messages became safe, a session was taken over, an operator sent a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.access.left_messages import LeftMessageGuard
from gateway.clients.ban_sweep import BanSweep
from gateway.clients.connections import Connections
from gateway.clients.describing import describe
from gateway.clients.registry import SessionRegistry
from gateway.clients.reporting import report
from gateway.delivery.replays import Replays
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from gateway.sessions.core import Core
from lightqueue.queues._queues import Queue
from lightqueue.queues.left_messages import Allowed, LeftMessage
from notify.api import Told
from notify.facts import ServerFacts
from store.errors import StoreError
from store.wire.operator_messages import BansTold, ClientDetails, Disconnect, GatewayReport


class StoreEvents:
    """The GatewayListener of notify.api."""

    can_judge = True

    def __init__(
        self,
        core: Core,
        registry: SessionRegistry,
        connections: Connections,
        left_messages: LeftMessageGuard,
        ban_sweep: BanSweep,
        replays: Replays,
    ) -> None:
        self._core, self._turn, self._journal = core, core.turn, core.journal
        self._registry = registry
        self._connections = connections
        self._left_messages = left_messages
        self._ban_sweep = ban_sweep
        self._replays = replays
        self.facts: ServerFacts | None = None  # of this process, for operators; None: the store is here, and has them

    def wake(self) -> None:
        """The store has events: handle them in the next turn."""
        self._turn.request()

    def safe_advanced(self) -> None:
        """The log became safe further than before: send what waited for it."""
        self._core.set_clock()
        self._journal.release()
        self._turn.request()

    def refused(self, mark: int, error: StoreError) -> None:
        """The store did not take what was appended up to this mark."""
        self._journal.refused(mark, error)

    def disowned(self, mark: int, error: StoreError) -> None:
        """Other gateways may have this gateway's sessions: all clients are closed, and no more is recorded of them."""
        self._registry.disown()
        for session in list(self._registry.sessions.values()):
            session.connection.close(ReasonCode.USE_ANOTHER_SERVER)
        self._connections.close_new(None)
        self._journal.discard(mark, error)

    def taken_over(self, client_id: str) -> None:
        """The client connected to another gateway."""
        self._registry.let_go(client_id)
        self._journal.store_end_of(client_id)  # the other gateway need not wait for the turn's end

    def told(self, message: Told) -> None:
        """A message of an operator."""
        if isinstance(message, BansTold):
            self._ban_sweep.take(message.bans, message.lifted, self._connected())
        elif isinstance(message, Disconnect):
            self._registry.disconnect(message.client_id, message.reason)
        self._turn.request()

    def describe(self, client_id: str, then: Callable[[ClientDetails | None], None]) -> None:
        """An operator asks about a client."""
        session = self._registry.sessions.get(client_id)
        then(describe(session) if session is not None else None)

    def report(self, after: int, then: Callable[[GatewayReport | None], None]) -> None:
        """An operator asks about this gateway."""
        then(report(self.facts, after) if self.facts is not None else None)

    def _connected(self) -> list[Connection]:
        sessions = self._registry.sessions.values()
        return [*(session.link for session in sessions if session.link is not None), *self._connections.table.new]

    def unlogged(self) -> list[tuple[str, str]]:
        """Clients that are connected and of whom the log knows nothing: their client identifiers and users."""
        sessions = self._registry.sessions.values()
        return [(session.client_id, session.connection.username) for session in sessions if not session.logged]

    def judge(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> None:
        """Wills and delayed messages are due: find out whether they may be sent."""
        self._left_messages.judge(messages, then)

    def lost_entries(self, queue: Queue, position: int, log_offset: int, known_to: int | None = None) -> None:
        """Move the readers of a queue that lost entries. Those at QoS 1 and 2 first get these messages from the log.

        `known_to`: log_offset up to which this gateway knew the queue's entries; None: the end that it knows now.
        """
        if known_to is None:
            known_to = self._core.store.queues.end
        for reader in list(queue.readers or ()):
            if reader.link is None:
                continue  # its connection has ended
            start = reader.reached if reader.lag else max(reader.reached, known_to)
            reader.stand_at(position, max(start, log_offset))
            if reader.qos and not reader.only_live and start < log_offset:
                self._replays.begin_for(reader, start)
