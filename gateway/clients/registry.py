"""The sessions of connected clients: opening, taking over and leaving them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gateway.access.left_messages import LeftMessageGuard
from gateway.access.session_owners import SessionOwners
from gateway.clients.session_reading import SessionReading
from gateway.mqtt.codec import encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import ConnAck, Connect
from gateway.mqtt.properties import Properties, encode_properties, has_its_format
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import topic_fault
from gateway.sessions.connection import Connection, Phase
from gateway.sessions.core import Core
from gateway.sessions.session import Session, restored
from notify.owners import ClaimDenied
from store.namespaces import MARK, is_reserved, is_servers_own
from store.state.changes import Progress, SessionClosed, SessionOpened, Subscribed, SubscriptionState, WillState
from store.state.sessions import NEVER_EXPIRES_S, SessionState, renewed

GRACE = 1.5
NEVER = 2  # retain handling: no retained messages [MQTT-3.3.1-11]


@dataclass(slots=True)
class _Opening:
    """A CONNECT that waits for its session."""

    connection: Connection
    connect: Connect
    will: WillState | None
    assigned: bool  # the gateway made up the client identifier

    @property
    def key(self) -> tuple[str, str]:
        return self.connect.client_id, self.connection.username


class SessionRegistry:
    """Owner of the sessions that are connected to this gateway."""

    def __init__(
        self, core: Core, left_messages: LeftMessageGuard, owners: SessionOwners, reading: SessionReading
    ) -> None:
        self._store = core.store
        self._settings = core.settings
        self._journal = core.journal
        self._events = core.events
        self._left_messages = left_messages
        self._owners = owners
        self._reading = reading
        self.sessions: dict[str, Session] = {}
        self.progressed: set[Session] = set()  # clients acknowledged something since note_positions()
        self.taken_over = 0
        self._will_grace_s = 0  # more once the gateway stops
        self._opening: dict[tuple[str, str], _Opening] = {}  # by client_id and user

    # --- opening

    def open(self, connection: Connection, connect: Connect) -> None:
        """Give the connection of a CONNECT its session, or refuse it (ProtocolError). It is not read from meanwhile."""
        connection.version, connection.is_bridge = connect.protocol_version, connect.is_bridge
        connection.max_packet_out = connect.properties.maximum_packet_size or 0xFFFFFFFF
        will = self._will_state(connection, connect)
        if connection.version != 5:
            connection.ack_limit = 65_535  # it could not know of another
        assigned = not connect.client_id
        if assigned:
            connect.client_id = connection.names.client_id(f"penstock-{secrets.token_hex(8)}")
        held = self.sessions.get(connect.client_id)
        if held is not None and held.connection.username != connection.username:
            self._owners.refuse_session(connection, connect.client_id, has_owner=True)
            return
        self._end(connect.client_id, connection.username)
        opening = _Opening(connection, connect, will, assigned)
        self._opening[opening.key] = opening
        self._claim(opening)
        if connection.phase is Phase.NEW and connection.session is None:
            connection.wait()

    def check_names(self, connect: Connect) -> None:
        """Raise ProtocolError if client_id or username is too long: both are kept in several tables."""
        most = self._settings.max_client_id_bytes
        if len(connect.client_id.encode()) > most:
            fault = f"client_id: longer than gateway.max_client_id_bytes = {most}"
            raise _refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, fault, connect)
        most = self._settings.max_username_bytes
        if len((connect.username or "").encode()) > most:
            fault = f"username: longer than gateway.max_username_bytes = {most}"
            raise _refusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, fault, connect)

    def _claim(self, opening: _Opening, reads: Sequence[str] = ()) -> None:
        """Ask the store for a session. `reads`: filters that the client may read, for a session without an owner."""
        connect = opening.connect
        self._journal.store_end_of(connect.client_id)  # what is left of it must be known before it is claimed
        claimant = self._owners.claimant(opening.connection, reads)
        answered = partial(self._answered, opening, reads)
        self._store.sessions.claim(connect.client_id, connect.clean_start, answered, claimant)

    def _answered(self, opening: _Opening, reads: Sequence[str], answer: SessionState | ClaimDenied | None) -> None:
        if not isinstance(answer, ClaimDenied):
            self._claimed(opening, answer)
        elif answer.filters and not reads:
            judged = partial(self._may_adopt, opening, answer.filters)
            self._owners.may_adopt(opening.connection, opening.connect.client_id, answer.filters, judged)
        else:
            self._refused(opening, not answer.filters, answer.quota)

    def _may_adopt(self, opening: _Opening, filters: Sequence[str], allowed: bool) -> None:
        if not allowed:
            self._refused(opening, has_owner=False)
        elif self._opening.get(opening.key) is opening and opening.connection.phase is Phase.NEW:
            self._claim(opening, filters)

    def _refused(self, opening: _Opening, has_owner: bool, quota: str = "") -> None:
        if self._opening.get(opening.key) is opening:
            del self._opening[opening.key]
        if opening.connection.phase is Phase.NEW and quota:
            self._owners.refuse_quota(opening.connection, opening.connect.client_id, quota)
        elif opening.connection.phase is Phase.NEW:
            self._owners.refuse_session(opening.connection, opening.connect.client_id, has_owner)

    def _will_state(self, connection: Connection, connect: Connect) -> WillState | None:
        will = connect.will
        if will is None:
            return None
        if is_servers_own(will.topic_name):
            level = will.topic_name.partition("/")[0]
            raise _refusal(ReasonCode.NOT_AUTHORIZED, f"will topic: what starts with {level} is the server's", connect)
        if will.topic_name.startswith("$") and not self._settings.dollar_topics:
            raise _refusal(ReasonCode.NOT_AUTHORIZED, "will topic: gateway.dollar_topics is off", connect)
        topic_name = connection.names.topic(will.topic_name)
        if fault := topic_fault(topic_name):
            raise _refusal(ReasonCode.TOPIC_NAME_INVALID, f"will topic: with its namespace it {fault}", connect)
        if is_reserved(will.properties.response_topic or ""):
            raise _refusal(ReasonCode.NOT_AUTHORIZED, f"will response topic: {MARK} is the server's", connect)
        if self._settings.check_payload_format and not has_its_format(will.payload, will.properties):
            raise _refusal(ReasonCode.PAYLOAD_FORMAT_INVALID, "will payload: not UTF-8", connect)
        delay_s = will.properties.will_delay_interval or 0
        will.properties.will_delay_interval = None
        properties = encode_properties(will.properties)
        left_by = self._left_messages.left_by(connection, connect.client_id, topic_name, will.retain)
        return WillState(topic_name, will.payload, int(will.qos), will.retain, properties, delay_s, left_by)

    def _end(self, client_id: str, user: str) -> None:
        """End the connection with this client identifier: the same user has a newer one [MQTT-3.1.4-3]."""
        self.let_go(client_id)
        opening = self._opening.pop((client_id, user), None)
        if opening is not None:
            opening.connection.close(ReasonCode.SESSION_TAKEN_OVER)

    def let_go(self, client_id: str) -> None:
        """End the connection of a session that another gateway claims.

        A CONNECT that still waits here for the session stays: it claimed the session later.
        """
        session = self.sessions.get(client_id)
        if session is not None:
            self.taken_over += 1
            self._events.info("taken-over", "session of client %s taken over", client_id)
            session.connection.close(ReasonCode.SESSION_TAKEN_OVER)

    def stop(self, will_grace_s: int) -> None:
        """Delay wills from now on by `will_grace_s` at least: clients of a stopping gateway may connect elsewhere."""
        self._will_grace_s = will_grace_s

    def presence(self, client_id: str) -> tuple[str, int] | None:
        """Address of a client that is connected here, and since when: Unix time in ms."""
        session = self.sessions.get(client_id)
        link = session.link if session is not None else None
        return (link.peer, link.opened_ms) if link is not None else None

    def disconnect(self, client_id: str, reason: str) -> None:
        """End a client's connection because an operator asks for it."""
        session = self.sessions.get(client_id)
        if session is not None and session.link is not None:
            why = f"an operator ended the connection: {reason}" if reason else "an operator ended the connection"
            session.link.close(ReasonCode.ADMINISTRATIVE_ACTION, why)

    def _claimed(self, opening: _Opening, state: SessionState | None) -> None:
        """Connect a claimed session to its connection. `state`: what the log has of the session; None: it is new."""
        connection, connect = opening.connection, opening.connect
        if self._opening.get(opening.key) is not opening:
            if opening.key not in self._opening:  # else there is a newer connection, which will have it
                self._store.sessions.release(connect.client_id)
            return
        del self._opening[opening.key]
        if connection.phase is not Phase.NEW:
            self._store.sessions.release(connect.client_id)
            return
        if state is not None and connection.username and state.user != connection.username:
            adopted = "session of client %s, which had no owner, is user %s's from now on"
            self._events.info("adopted", adopted, connect.client_id, connection.username)
        is_told = state is not None and not state.gap  # else it has to subscribe again: what it had may be incomplete
        if state is not None and not is_told:
            state = renewed(state)
        session = restored(state) if state is not None else Session(connect.client_id, self._store.queues.end)
        self.sessions[connect.client_id] = session
        self._configure(opening, session, is_renewed=state is not None and not is_told)
        properties = self._connack_properties(connect, session, opening.assigned)
        connack = _encode_connack(connection, ConnAck(is_told, ReasonCode.SUCCESS, properties))
        if len(connack) > connection.max_packet_out:
            connection.keep_will = False
            connection.close(ReasonCode.PACKET_TOO_LARGE, "its maximum_packet_size is less than CONNACK takes")
            return
        known = [] if state is None else list(state.subscriptions.values())
        if self._settings.direct_messages:
            known += self._direct(session, known)
        if session.logged:
            connection.wait()  # nothing may overtake the CONNACK [MQTT-3.2.0-1]
            self._journal.when_safe(connection, lambda: self._opened(session, known, connack))
        else:
            self._opened(session, known, connack)

    def _direct(self, session: Session, known: Sequence[SubscriptionState]) -> list[SubscriptionState]:
        """The subscription to what is sent straight to a client, if its session does not have it yet."""
        topic_filter = session.connection.names.direct_filter(session.client_id)
        if not topic_filter or any(each.topic_filter == topic_filter for each in known):
            return []
        direct = [SubscriptionState(topic_filter, 2, retain_handling=NEVER, since=self._store.queues.end)]
        if session.expiry_s:
            self._journal.record(Subscribed(session.client_id, direct))
        return direct

    def _configure(self, opening: _Opening, session: Session, is_renewed: bool) -> None:
        connection, connect = opening.connection, opening.connect
        session.expiry_s = self._expiry_s(connect)
        session.will = opening.will
        session.logged = session.logged or session.expiry_s > 0 or session.will is not None
        if session.logged:
            user, expiry_s = connection.username, session.expiry_s
            clean, will = connect.clean_start, session.will
            opened = SessionOpened(session.client_id, clean, expiry_s, will, user=user, renewed=is_renewed)
            self._journal.record(opened)
        session.attach(connection, min(connect.properties.receive_maximum or 65_535, self._settings.max_inflight))
        connection.keep_alive_s = GRACE * self._keep_alive_s(connect)
        connection.alias_limit = min(connect.properties.topic_alias_maximum or 0, self._settings.max_topic_aliases_out)
        connection.tells_problems = connect.properties.request_problem_information is not False

    def _opened(self, session: Session, known: list[SubscriptionState], connack: bytes) -> None:
        """Send the CONNACK, as the opening is safe in the log, and begin to read where the last connection ended."""
        if session.link is None:
            return
        link = session.connection
        link.write(connack)
        link.enter(Phase.OPEN)
        link.max_packet_in = self._settings.maximum_packet_size_bytes
        link.opened_ms = link.turn.now_ms
        link.behind = True  # nothing is delivered before all readers are there
        self._reading.begin(session, known)

    def _expiry_s(self, connect: Connect) -> int:
        """A session of MQTT 3.1.1 without the clean flag never ends; each is cut to max_session_expiry_s."""
        if connect.protocol_version == 5:
            wanted = connect.properties.session_expiry_interval or 0
        else:
            wanted = 0 if connect.clean_start else NEVER_EXPIRES_S
        return min(wanted, self._settings.max_session_expiry_s)

    def _keep_alive_s(self, connect: Connect) -> int:
        """The keep alive in force. An MQTT 3.1.1 client keeps its own, as CONNACK cannot tell it another."""
        most = self._settings.max_keep_alive_s if connect.protocol_version == 5 else 0
        return min(connect.keep_alive_s or most, most) if most else connect.keep_alive_s

    def _connack_properties(self, connect: Connect, session: Session, assigned: bool) -> Properties:
        """The limits of this server, for the CONNACK of an MQTT 5 client."""
        if connect.protocol_version != 5:
            return Properties()
        settings = self._settings
        keep_alive_s = self._keep_alive_s(connect)
        wanted = connect.properties.session_expiry_interval or 0
        return Properties(
            assigned_client_identifier=session.connection.names.plain_client_id(session.client_id)
            if assigned
            else None,
            session_expiry_interval=session.expiry_s if session.expiry_s != wanted else None,
            server_keep_alive=keep_alive_s if keep_alive_s != connect.keep_alive_s else None,
            receive_maximum=settings.receive_maximum if settings.receive_maximum < 65_535 else None,
            maximum_packet_size=settings.maximum_packet_size_bytes,
            topic_alias_maximum=settings.topic_alias_maximum or None,
            authentication_method=connect.properties.authentication_method,
            authentication_data=connect.properties.authentication_data,
        )

    def change_expiry(self, session: Session, expiry_s: int) -> None:
        """Take over the session expiry interval of a DISCONNECT [MQTT-3.1.2-23]."""
        if expiry_s and not session.expiry_s:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "session_expiry_interval was 0 in CONNECT")
        session.expiry_s = min(expiry_s, self._settings.max_session_expiry_s)

    # --- leaving

    def left(self, connection: Connection) -> None:
        """Record that the connection of a session ended, for whatever reason. The store decides about the will."""
        session: Session = connection.session
        shared = self._reading.leave_groups(session)
        end = self._store.queues.end
        if session.expiry_s:
            session.acked = max(session.acked, session.position(end))
        frontier = max(session.acked, session.read_until(end))  # a replay may stand further back
        self._reading.end(session)
        session.link = None
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        if session.logged:
            keep_will = connection.keep_will and session.will is not None
            inflight = session.inflight.dump() if session.expiry_s else b""
            acked = session.acked if session.expiry_s else 0
            ended, grace_s = (frontier, inflight, shared, acked), self._will_grace_s if keep_will else 0
            closed = SessionClosed(session.client_id, session.expiry_s, keep_will, *ended, grace_s)
            self._journal.record_end(closed)
        else:
            self._store.sessions.release(session.client_id)

    def _note_position(self, session: Session) -> None:
        """Record how far a session has acknowledged messages."""
        if session.expiry_s:
            position = session.position(self._store.queues.end)
            if position > session.acked:
                session.acked = position
                self._journal.record(Progress(session.client_id, acked=position))

    def disown(self) -> None:
        """Record nothing more of these sessions: they may belong to other gateways now."""
        for session in self.sessions.values():
            session.logged = False
            session.expiry_s = 0
        self._opening.clear()

    def note_positions(self) -> None:
        """Call several times a second: record how far sessions have acknowledged messages since the last call."""
        progressed, self.progressed = self.progressed, set()
        for session in progressed:
            if session.link is not None:
                self._note_position(session)


def _encode_connack(connection: Connection, connack: ConnAck) -> bytes:
    """Encode a CONNACK. If it exceeds the client's maximum_packet_size, optional properties are left out."""
    data = encode(connack, connection.version)
    if len(data) <= connection.max_packet_out:
        return data
    properties = connack.properties
    properties.topic_alias_maximum = properties.maximum_packet_size = properties.shared_subscription_available = None
    return encode(connack, connection.version)


def _refusal(reason_code: ReasonCode, message: str, connect: Connect) -> ProtocolError:
    """An error that is answered with a CONNACK."""
    error = ProtocolError(reason_code, message)
    error.connack_version = connect.protocol_version
    return error
