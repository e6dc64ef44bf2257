"""The connections of a gateway on their way to another process: held, packed, and taken in there. No I/O.

The old process: hold() → is_quiet → batches(); go_on() if the other one does not come to serve.
The new process: take() each batch → begin() once it serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from gateway.broker import Broker
from gateway.handover.connections import (
    can_travel,
    handed_connection,
    is_blank,
    put_into_connection,
    taken_identity,
)
from gateway.handover.sessions import (
    PlaceOf,
    QueueOf,
    RefOf,
    SeatOf,
    SessionParts,
    has_under_way,
    taken_session,
)
from gateway.handover.state import MOST_CONNECTIONS, HandedConnection, encode_batch
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection, Phase
from gateway.sessions.session import Session
from gateway.transport.client_sockets import ClientSockets
from gateway.transport.listener import Listener
from notify.steps import in_steps

BATCH_BYTES = 1 << 20
"""A batch takes no further connection once its clients' unread and unsent bytes come to this."""


class PackedBatch(NamedTuple):
    """Some connections, and their descriptors in the same order."""

    descriptors: list[int]
    state: bytes


class HeldStore(Protocol):
    """A store that can be kept from giving anything to clients for a while."""

    def hold(self) -> None: ...
    def go_on(self) -> None: ...


class MovingOut:
    """A gateway's connections, as they leave it."""

    def __init__(self, broker: Broker, store: HeldStore, listeners: Sequence[Listener], clients: ClientSockets) -> None:
        """`store` is the broker's."""
        self._broker = broker
        self._store = store
        self._listeners = listeners
        self._clients = clients
        self._is_held = False
        self._packed: list[Connection] = []

    def staying(self) -> list[Session]:
        """Sessions whose connections cannot travel: they have TLS or WebSocket."""
        return [each for each in self._broker.registry.sessions.values() if not can_travel(each.connection)]

    def close_new_that_stay(self) -> None:
        """Close the connections that cannot travel and have no session yet."""
        for connection in list(self._broker.connections.table.new):
            if not can_travel(connection):
                connection.close(ReasonCode.SERVER_BUSY)

    def hold(self) -> None:
        """Read from no client, accept none, and deliver nothing: what is under way comes to its end."""
        self._is_held = True
        self._clients.stop()
        for listener in self._listeners:
            listener.pause()
        self._store.hold()
        self._broker.shared.hold()
        self._broker.turn.request()

    def close_undecided(self) -> None:
        """Close the clients that are still being let in: they have no session, and come again."""
        for connection in list(self._broker.connections.table.new):
            if not is_blank(connection):
                connection.close(ReasonCode.SERVER_BUSY)

    def fault(self) -> str:
        """The first thing found that is still under way; empty: nothing is."""
        broker = self._broker
        broker.core.set_clock()
        broker.registry.note_positions()
        broker.store_batch()
        broker.end_turn()
        if not broker.journal.is_settled:
            return "appends that are not safe"
        if broker.turn.unsent or broker.turn.crowded or broker.turn.dirty:
            return "output that is not written"
        if any(not is_blank(each) for each in broker.connections.table.new):
            return "clients that are being let in"
        if any(has_under_way(each) for each in broker.registry.sessions.values()):
            return "requests of clients"
        return ""

    def batches(self, ref_of: RefOf, place_of: PlaceOf) -> Iterator[PackedBatch]:
        """All connections that travel, out of epoll by then."""
        places = {id(listener.entrance): number for number, listener in enumerate(self._listeners)}
        descriptors: list[int] = []
        packed: list[HandedConnection] = []
        size_bytes = 0
        self._packed = self._travelling()
        for connection in self._packed:
            connection.transport.forget()
            listener = places[id(connection.entrance)]
            handed = handed_connection(connection, listener, ref_of, place_of)
            descriptors.append(connection.fd)
            packed.append(handed)
            size_bytes += len(handed.rest) + len(handed.unsent)
            if len(packed) == MOST_CONNECTIONS or size_bytes >= BATCH_BYTES:
                yield PackedBatch(descriptors, encode_batch(packed))
                descriptors, packed, size_bytes = [], [], 0
        if packed:
            yield PackedBatch(descriptors, encode_batch(packed))

    def _travelling(self) -> list[Connection]:
        with_session = [each.connection for each in self._broker.registry.sessions.values()]
        return [each for each in (*with_session, *self._broker.connections.table.new) if can_travel(each)]

    def give_up(self) -> None:
        """The descriptors that batches() named are the caller's: this broker serves nobody any more."""
        for connection in self._packed:
            connection.transport.give_up()
        self._packed = []

    def go_on(self) -> None:
        """The other process does not serve: go on as before."""
        if not self._is_held:
            return
        self._is_held = False
        self._broker.core.set_clock()
        for connection in self._travelling():
            connection.last_seen_s = self._broker.turn.now_s  # it was not read from, so its silence is not its fault
            connection.transport.look_again()
        self._store.go_on()
        self._broker.shared.go_on()
        for listener in self._listeners:
            listener.resume()
        self._clients.start()
        self._broker.turn.request()


class MovingIn:
    """The connections of another process, as they come into this one. Nothing is read or written before begin()."""

    def __init__(
        self, broker: Broker, listeners: Sequence[Listener], clients: ClientSockets, queue_of: QueueOf, seat_of: SeatOf
    ) -> None:
        self._broker = broker
        self._listeners = listeners
        self._clients = clients
        parts = broker.deliverer, broker.shared, broker.subscriptions.retained
        self._parts = SessionParts(*parts, queue_of, seat_of)
        self._came: list[Connection] = []

    def __len__(self) -> int:
        return len(self._came)

    def take(self, connections: Sequence[HandedConnection], descriptors: Sequence[int]) -> None:
        """Take in a batch. Raises AuthError, KeyError or OSError if that is not possible."""
        for handed, descriptor in zip(connections, descriptors, strict=True):
            self._take(handed, descriptor)

    def _take(self, handed: HandedConnection, descriptor: int) -> None:
        broker, settings = self._broker, self._broker.core.settings
        connection = Connection(broker.connections, self._listeners[handed.listener].entrance)
        connection.fd = descriptor
        self._clients.sockets.open(descriptor, connection, handed.address)
        if connection.phase is Phase.CLOSED:  # a limit is lower than it was
            return
        if handed.session is not None:
            connection.identity = taken_identity(handed.identity) if handed.identity is not None else None
            broker.places.tenants.enter_again(connection, handed.namespace)
            connection.enter(Phase.OPEN)
            connection.max_packet_in = settings.maximum_packet_size_bytes
            session = taken_session(handed.session, connection, self._parts)
            broker.registry.sessions[session.client_id] = session
            broker.connections.table.opened(connection)
        put_into_connection(handed, connection)
        if connection.session is not None:
            broker.places.take(connection, connection.username)
            broker.places.counting.came(connection.session)
        connection.transport.hold_back(handed.unsent)
        self._came.append(connection)

    def begin(self) -> None:
        """Begin to serve: read, write and accept connections."""
        broker = self._broker
        began_s = broker.turn.now_s
        broker.core.set_clock()
        came, self._came = self._came, []
        for connection in came:
            connection.last_seen_s += broker.turn.now_s - began_s  # it was not read from meanwhile
            if connection.keeps_bytes and connection.phase is not Phase.CLOSED:
                connection.on_much()
        sessions = [each.session for each in came if each.session is not None]
        broker.deliverer.room(each for each in sessions if each.has_something_first)
        in_steps(self._judge(sessions), broker.core.scheduler.soon)
        broker.shared.go_on()
        broker.judge_again()
        self._clients.start()
        broker.turn.request()

    def _judge(self, sessions: list[Session]) -> Iterator[None]:
        """Judge the clients by what this process knows of users and bans."""
        for session in sessions:
            if session.link is not None:
                self._broker.admission.taken_over(session.link)
            yield
