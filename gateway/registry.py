"""Who is who: opening, taking over, ending and expiring sessions, and sending the wills of those that are gone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from gateway.codec import encode
from gateway.connection import Connection, Phase
from gateway.deadlines import Deadlines
from gateway.delivery import Delivery
from gateway.errors import ProtocolError
from gateway.exchange import Exchange
from gateway.journal import Journal
from gateway.packets import ConnAck, Connect, Will
from gateway.properties import Properties, encode_properties
from gateway.ratelimit import RateLimitedLog
from gateway.reason_codes import ReasonCode
from gateway.session import Session
from gateway.settings import GatewaySettings
from gateway.topics import validate_topic_name
from lightqueue.message_store import MessageStore
from store.changes import Progress, SessionClosed, SessionEnded, SessionOpened, WillFired, WillState
from store.sessions import SessionState

NEVER_EXPIRES_S = 0xFFFFFFFF
GRACE = 1.5


class SessionRegistry:
    """Owner of the sessions of this gateway, online and offline."""

    def __init__(
        self,
        store: MessageStore,
        settings: GatewaySettings,
        journal: Journal,
        exchange: Exchange,
        delivery: Delivery,
        deadlines: Deadlines,
        events: RateLimitedLog,
        soon: Callable[[Callable[[], None]], object],
        opened: Callable[[Connection], None],
    ) -> None:
        """`soon` has something done in a later turn; `opened` is told of each connection that has its session."""
        self._store = store
        self._settings = settings
        self._journal = journal
        self._exchange = exchange
        self._delivery = delivery
        self._deadlines = deadlines
        self._events = events
        self._soon = soon
        self._tell_opened = opened
        self.sessions: dict[str, Session] = {}
        self.taken_over = 0
        self.expired: int = 0

    # --- opening

    def open(self, connection: Connection, connect: Connect) -> None:
        """A CONNECT: give the connection its session, or refuse it (ProtocolError)."""
        if connect.properties.authentication_method is not None:
            raise _refusal(ReasonCode.BAD_AUTHENTICATION_METHOD, "no authentication method is offered", connect)
        if connect.will is not None and connect.will.topic_name.startswith("$"):
            raise _refusal(ReasonCode.NOT_AUTHORIZED, "will topic: what starts with $ is the server's", connect)
        connection.version = connect.protocol_version
        if connection.version != 5:
            connection.ack_limit = 65_535  # it could not know of another
        assigned = not connect.client_id
        if assigned:
            connect.client_id = f"penstock-{secrets.token_hex(8)}"
        session, present = self._take(connect)
        self._configure(connection, session, connect)
        properties = self._connack_properties(connect, session, assigned)
        connack = encode(ConnAck(present, ReasonCode.SUCCESS, properties), connection.version)
        if session.logged:
            connection.wait()  # nothing may overtake the CONNACK [MQTT-3.2.0-1]
            self._journal.when_safe(connection, lambda: self._opened(connection, session, connack))
        else:
            self._opened(connection, session, connack)

    def _take(self, connect: Connect) -> tuple[Session, bool]:
        """The session for a CONNECT, free of any earlier connection, and whether it was there before."""
        session = self.sessions.get(connect.client_id)
        if session is not None and session.link is not None:
            self.taken_over += 1
            self._events.info("taken-over", "session of client %s taken over", session.client_id)
            session.link.close(ReasonCode.SESSION_TAKEN_OVER)
            session = self.sessions.get(connect.client_id)
        if session is not None and connect.clean_start:
            self._fire_will(session)
            self._forget(session)
            if session.logged:
                self._journal.record(SessionEnded(session.client_id))
            session = None
        present = session is not None
        if session is None:
            session = self.sessions[connect.client_id] = Session(connect.client_id, self._store.end)
        self._deadlines.cancel(("will", session.client_id))
        self._deadlines.cancel(("expiry", session.client_id))
        return session, present

    def _configure(self, connection: Connection, session: Session, connect: Connect) -> None:
        settings = self._settings
        was_logged = session.logged
        session.expiry_s = self._expiry_s(connect)
        session.will = _will_state(connect.will)
        session.logged = was_logged or session.expiry_s > 0 or session.will is not None
        if session.logged:
            self._journal.record(SessionOpened(session.client_id, connect.clean_start, session.expiry_s, session.will))
        if connect.clean_start:
            session.frontier = session.acked = self._store.end
        window = min(connect.properties.receive_maximum or 65_535, settings.max_inflight)
        session.attach(connection, window)
        connection.phase = Phase.OPEN
        connection.keep_alive_s = GRACE * self._keep_alive_s(connect)
        connection.max_packet_out = connect.properties.maximum_packet_size or 0xFFFFFFFF

    def _opened(self, connection: Connection, session: Session, connack: bytes) -> None:
        """The session's opening is safe: answer, and go on where the last connection ended."""
        if connection.phase is not Phase.OPEN:
            return
        connection.write(connack)
        session.read_on(self._store, self._settings.queue_qos0)
        self._exchange.resend(session)
        self._delivery.start(session)
        self._tell_opened(connection)
        if connection.waiting:
            self._soon(connection.proceed)

    def _expiry_s(self, connect: Connect) -> int:
        """A session of MQTT 3.1.1 without the clean flag never ends; each is cut to max_session_expiry_s."""
        if connect.protocol_version == 5:
            wanted = connect.properties.session_expiry_interval or 0
        else:
            wanted = 0 if connect.clean_start else NEVER_EXPIRES_S
        return min(wanted, self._settings.max_session_expiry_s)

    def _keep_alive_s(self, connect: Connect) -> int:
        most = self._settings.max_keep_alive_s
        return min(connect.keep_alive_s or most, most) if most else connect.keep_alive_s

    def _connack_properties(self, connect: Connect, session: Session, assigned: bool) -> Properties:
        """What an MQTT 5 client has to know of this server."""
        if connect.protocol_version != 5:
            return Properties()
        settings = self._settings
        keep_alive_s = self._keep_alive_s(connect)
        wanted = connect.properties.session_expiry_interval or 0
        return Properties(
            assigned_client_identifier=session.client_id if assigned else None,
            session_expiry_interval=session.expiry_s if session.expiry_s != wanted else None,
            server_keep_alive=keep_alive_s if keep_alive_s != connect.keep_alive_s else None,
            receive_maximum=settings.receive_maximum if settings.receive_maximum < 65_535 else None,
            maximum_packet_size=settings.maximum_packet_size_bytes,
            topic_alias_maximum=settings.topic_alias_maximum or None,
            shared_subscription_available=False,
        )

    def change_expiry(self, session: Session, expiry_s: int) -> None:
        """A DISCONNECT with another session expiry interval [MQTT-3.1.2-23]."""
        if expiry_s and not session.expiry_s:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "session_expiry_interval was 0 in CONNECT")
        session.expiry_s = min(expiry_s, self._settings.max_session_expiry_s)

    # --- leaving

    def left(self, connection: Connection) -> None:
        """A connection ended, for whatever reason."""
        session: Session = connection.session
        self._note_position(session)
        session.frontier = max(session.acked, session.read_until(self._store))  # a replay may stand further back
        self._delivery.stop(session)
        session.link = None
        session.inflight.blocked = False
        will = session.will if connection.keep_will else None
        session.will = will
        if session.logged:
            self._journal.record(SessionClosed(session.client_id, session.expiry_s, will is not None))
        self._schedule(session, time.time())

    def _note_position(self, session: Session) -> None:
        """Have the log know how far the session came."""
        if session.expiry_s:
            position = session.position(self._store)
            if position > session.acked:
                session.acked = position
                self._journal.record(Progress(session.client_id, acked=position))

    def note_positions(self, sessions: set[Session]) -> None:
        for session in sessions:
            self._note_position(session)

    def _schedule(self, session: Session, closed_at_s: float) -> None:
        """What happens to a session without a connection: its will after its delay, its end after its expiry."""
        client_id = session.client_id
        if session.will is not None:
            delay_s = min(session.will.delay_s, session.expiry_s)
            if delay_s:
                self._deadlines.set(("will", client_id), closed_at_s + delay_s, lambda: self._fire_will(session))
            else:
                self._fire_will(session)
        if session.expiry_s == 0:
            self._forget(session)
        elif session.expiry_s != NEVER_EXPIRES_S:
            at_s = closed_at_s + session.expiry_s
            self._deadlines.set(("expiry", client_id), at_s, lambda: self._expire(session))

    def _fire_will(self, session: Session) -> None:
        """Publish a will and record that it was: both or neither."""
        will, session.will = session.will, None
        if will is None:
            return
        self._events.info("will", "will of client %s sent to %s", session.client_id, will.topic)
        self._journal.begin_atomic()
        self._journal.message(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            client_id=session.client_id.encode(),
            properties=will.properties,
            expires=b"\2" in will.properties,
        )
        self._journal.record(WillFired(session.client_id))
        self._journal.end_atomic()

    def _expire(self, session: Session) -> None:
        self.expired += 1
        self._events.info("expired", "session of client %s expired", session.client_id)
        self._fire_will(session)
        self._forget(session)
        self._journal.record(SessionEnded(session.client_id))

    def _forget(self, session: Session) -> None:
        self._deadlines.cancel(("will", session.client_id))
        self._deadlines.cancel(("expiry", session.client_id))
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]

    # --- starting

    def restore(self) -> None:
        """Take over the sessions that the log knows. One that was connected when the process died is closed now."""
        now_s = time.time()
        for state in list(self._store.sessions):
            session = self.sessions[state.client_id] = Session.restored(state)
            if state.connected:
                self._journal.record(
                    SessionClosed(state.client_id, state.session_expiry_interval, state.will is not None)
                )
            self._schedule(session, now_s if state.connected else _closed_at_s(state))


def _closed_at_s(state: SessionState) -> float:
    return state.closed_at_ms / 1000


def _will_state(will: Will | None) -> WillState | None:
    if will is None:
        return None
    validate_topic_name(will.topic_name, "will topic")
    delay_s = will.properties.will_delay_interval or 0
    will.properties.will_delay_interval = None
    properties = encode_properties(will.properties)
    return WillState(will.topic_name, will.payload, int(will.qos), will.retain, properties, delay_s)


def _refusal(reason_code: ReasonCode, message: str, connect: Connect) -> ProtocolError:
    """An error that is answered with a CONNACK."""
    error = ProtocolError(reason_code, message)
    error.connack_version = connect.protocol_version
    return error
