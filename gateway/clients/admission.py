"""CONNECT and AUTH: a client gets a session once its user is known. No I/O; answers may come later."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from gateway.access.guard import Guard
from gateway.access.recognition import Recognition
from gateway.auth.bans import Ban
from gateway.auth.identity import UNKNOWN, Attempt, Credentials, Identity, LoginRefused, Verdict
from gateway.auth.namespaces import login_name
from gateway.auth.scram import ScramExchange, ScramFailed
from gateway.auth.sources import source_of
from gateway.clients.ban_sweep import BanSweep
from gateway.clients.places import ClientPlaces
from gateway.clients.registry import SessionRegistry
from gateway.mqtt.codec import encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import Auth, Connect
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection, Phase, address_of
from gateway.sessions.core import Core
from store.audit import AuditEvent
from store.namespaces import Namespace

SLOW_PART = 50
"""If logins from an address failed lately, one user may have 1/50 of the clients that may wait from that address."""
MAX_EXPIRY_AHEAD_S = 10 * 365 * 24 * 3600
UNBOUND = (
    "its rules have %c, the client identifier, and user {} may have any; write %u in the rules, or bind client "
    'identifiers to users with auth.client_ids = "%u-*" or auth.jwt_client_id_claim'
)


@dataclass(slots=True)
class _Entering:
    """A client whose login is being checked: at its CONNECT, or (`again`) at a re-authentication."""

    connection: Connection
    connect: Connect
    exchange: ScramExchange | None = None
    method: str = ""
    has_begun: bool = False  # the exchange's first message was answered
    again: bool = False
    source: str = ""  # source_of() its address, by which waiting clients are counted
    username: str = ""  # the name that the client logs in with
    attempt: Attempt = field(default_factory=Attempt)

    @property
    def key(self) -> tuple[str, str]:
        return self.source, self.username


class Admission:
    """Owner of the clients that wait for admission (gateway.connect_timeout_s at most), or authenticate in steps."""

    def __init__(
        self,
        core: Core,
        recognition: Recognition,
        guard: Guard,
        ban_sweep: BanSweep,
        places: ClientPlaces,
        registry: SessionRegistry,
    ) -> None:
        self.recognition = recognition
        self._access = recognition.access
        self._guard = guard
        self._places = places
        self._registry = registry
        self._deadlines = core.deadlines
        self._events = core.events
        self._audit = core.audit
        self._soon = core.scheduler.soon
        self._ban_sweep = ban_sweep
        self._bans = ban_sweep.bans
        self._entering: dict[Connection, _Entering] = {}
        self._entering_from: dict[str | tuple[str, str], int] = {}  # number of these, by source, and by (source, user)
        self.abandoned = 0
        self._again = 0  # number of these that are connected and re-authenticate
        self.refused = recognition.refused  # connections by reason code

    @property
    def waiting(self) -> int:
        """Clients whose login is being checked."""
        return len(self._entering)

    # --- CONNECT

    def connect(self, connection: Connection, connect: Connect) -> None:
        """Admit the client, now or when the authenticator has answered; or refuse it. Raises ProtocolError."""
        if connection in self._entering:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a second CONNECT [MQTT-3.1.0-2]")
        self._registry.check_names(connect)
        method = connect.properties.authentication_method
        access = self._access
        names = Namespace(_named_outside(connection))
        user = names.client_id(connect.username) if connect.username else ""
        client_id = names.client_id(connect.client_id) if connect.client_id else ""
        if self._is_banned(connection, connect, user, client_id):
            return
        if access is None:
            if method is not None:
                connection.version = connect.protocol_version
                refusal = LoginRefused("no authentication method is offered", ReasonCode.BAD_AUTHENTICATION_METHOD)
                self._refuse(connection, refusal, connect)
                return
            connection.version = connect.protocol_version
            if self._enters(connection, connect, Identity()) is not None and self._has_room(connection, connect, ""):
                self._places.take(connection, "")
                self._registry.open(connection, connect)
            return
        connection.version = connect.protocol_version
        address = connection.address
        source = source_of(address[0]) if isinstance(address, tuple) else ""
        username = login_name(connect.username, names.name, access.namespace_separator)
        entering = _Entering(connection, connect, source=source, username=username or "")
        if not self._waits(entering):
            return
        if method is not None:
            self._begin(entering, method, connect.properties.authentication_data)
            return
        credentials = Credentials(
            connect.client_id,
            username,
            connect.password,
            address_of(address),
            connection.peer_identity,
            names.name,
            entering.source,
            entering.attempt,
        )
        access.authenticate(credentials, partial(self._answered, entering))
        if connection in self._entering and connection.phase is Phase.NEW:
            connection.wait(is_read=True)

    def _waits(self, entering: _Entering) -> bool:
        """Add a client to the waiting ones. Returns False if a limit refuses it."""
        assert self._access is not None
        settings, source = self._access.settings, entering.source
        if entering.again:  # its connection is what bounds it
            self._entering[entering.connection] = entering
            self._again += 1
            return True
        most, slow = settings.max_waiting_per_address, self._access.attempts.is_slow(source)
        entering_from, key = self._entering_from, entering.key
        waiting, of_user = entering_from.get(source, 0), entering_from.get(key, 0)
        if len(self._entering) - self._again >= settings.max_waiting:
            why = "auth.max_waiting clients wait already"
        elif source and (waiting >= most or (slow and of_user >= max(1, most // SLOW_PART))):
            why = "auth.max_waiting_per_address clients wait already"
        else:
            self._entering[entering.connection] = entering
            entering_from[source], entering_from[key] = waiting + 1, of_user + 1
            return True
        self._refuse(entering.connection, LoginRefused(why, ReasonCode.SERVER_BUSY), entering.connect)
        return False

    def _ends(self, connection: Connection) -> _Entering | None:
        """Remove a client from the waiting ones; None: it does not wait."""
        entering = self._entering.pop(connection, None)
        if entering is not None:
            self.abandoned += entering.attempt.abandon()
            self._again -= entering.again
        if entering is not None and not entering.again:
            for key in (entering.source, entering.key):
                left = self._entering_from[key] - 1
                if left:
                    self._entering_from[key] = left
                else:
                    del self._entering_from[key]
        return entering

    def _count(self, entering: _Entering, username: str, verdict: Identity | LoginRefused) -> None:
        """Note the outcome of a login; an address with too many failed logins is banned."""
        assert self._access is not None
        settings, source = self._access.settings, entering.source
        if self._access.attempts.note(source, username, verdict):
            until_ms = entering.connection.turn.now_ms + settings.ban_s * 1000
            reason = f"{settings.ban_failures} failed logins"
            self._bans.ban("address", source, until_ms, reason, automatic=True)
            self._events.warning("ban", "%s is banned for %d s: %s", source, settings.ban_s, reason)

    def _answered(self, entering: _Entering, verdict: Verdict) -> None:
        """The authenticator has answered: an identity, or why the client is refused."""
        connection = entering.connection
        entering.attempt.abandon()
        if entering.exchange is None:
            self._count(entering, entering.username, verdict or UNKNOWN)
        if self._entering.get(connection) is not entering:
            return  # it left meanwhile
        if not isinstance(verdict, Identity):
            self._ends(connection)
            self._refuse(connection, verdict or UNKNOWN, entering.connect)
            return
        assert self._access is not None
        connect, connection.identity = entering.connect, verdict
        if connect.client_id and not self._access.may_be_called(verdict, connect.client_id):
            self._ends(connection)
            refusal = LoginRefused(
                f"user {verdict.username} may not be called {connect.client_id}", ReasonCode.NOT_AUTHORIZED
            )
            self._refuse(connection, refusal, connect)
            return
        identity = self._enters(connection, connect, verdict)
        if identity is None or self._is_banned(connection, connect, identity.account, connect.client_id):
            self._ends(connection)
            return
        if self._access.needs_client_id(identity):
            self._ends(connection)
            unbound = LoginRefused(UNBOUND.format(identity.username), ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, unbound, connect)
            return
        connection.identity = identity
        self._guard.check_will(connection, connect, partial(self._will_checked, entering))
        if connection in self._entering and connection.phase is Phase.NEW:
            connection.wait(is_read=True)

    def _will_checked(self, entering: _Entering, allowed: bool) -> None:
        connection = entering.connection
        if self._entering.get(connection) is not entering:
            return
        self._ends(connection)
        identity = connection.identity
        if not allowed:
            refusal = LoginRefused("its will is not allowed", ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, refusal, entering.connect)
            return
        assert identity is not None
        has_room = self._has_room(connection, entering.connect, identity.account)
        if has_room and self._expires(connection, identity, entering.connect):
            self._places.take(connection, identity.account)
            try:
                self._registry.open(connection, entering.connect)
            except ProtocolError as error:
                connection.refuse(error)

    def _enters(self, connection: Connection, connect: Connect, identity: Identity) -> Identity | None:
        """Put a client into its namespace. None: the client is refused."""
        found = self._places.enter(connection, connect, identity)
        if isinstance(found, Identity):
            return found
        self._refuse(connection, found, connect)
        return None

    def _has_room(self, connection: Connection, connect: Connect, user: str) -> bool:
        """Check that the client's user and namespace may have one more connection; refuse the client if not."""
        session = self._registry.sessions.get(connect.client_id)
        why = self._places.fault(connection, user, session.link if session is not None else None)
        if why:
            self._refuse(connection, LoginRefused(why, ReasonCode.QUOTA_EXCEEDED), connect)
        return not why

    def _expires(self, connection: Connection, identity: Identity, connect: Connect) -> bool:
        """Close the connection when its credentials expire. If they have expired, refuse it and return False."""
        if identity.expires_ms is None:
            self._deadlines.cancel(connection)
            return True
        left_s = (identity.expires_ms - connection.turn.now_ms) / 1000
        if left_s <= 0:
            self._refuse(connection, LoginRefused("its credentials have expired", ReasonCode.NOT_AUTHORIZED), connect)
            return False
        at_s = connection.turn.now_s + min(left_s, MAX_EXPIRY_AHEAD_S)
        self._deadlines.set(connection, at_s, partial(self._expired, connection))
        return True

    def _expired(self, connection: Connection) -> None:
        connection.close(ReasonCode.MAXIMUM_CONNECT_TIME, "its credentials have expired")

    def _is_banned(self, connection: Connection, connect: Connect, user: str, client_id: str) -> bool:
        """Refuse a client that is banned. Names are those of the log, as operators see them."""
        if not len(self._bans):
            return False
        ban = self._bans.refuses(connection.host, user, client_id, connection.turn.now_ms)
        if ban is not None:
            connection.version = connect.protocol_version
            refusal = LoginRefused(f"{_words(ban)} is banned: {ban.reason}", ReasonCode.BANNED)
            self._refuse(connection, refusal, connect)
        return ban is not None

    def _refuse(self, connection: Connection, refused: LoginRefused, connect: Connect, told: str = "") -> None:
        """Close a connection with a reason code; count, log and audit the refusal.

        `told`: the reason string for the client. The audit names the user that was found, otherwise the user that
        `connect` names.
        """
        self.refused[refused.reason_code.name.lower()] += 1
        peer = connection.peer
        self._events.warning("auth", "%s: refused: %s", peer, refused.message)
        found, reason = connection.identity, refused.message
        user = (found.account if found is not None else connect.username) or ""
        self._audit.note(AuditEvent.REFUSED, user=user, client_id=connect.client_id, address=peer, reason=reason)
        connection.close(refused.reason_code, told)

    # --- enhanced authentication

    def _begin(self, entering: _Entering, method: str, data: bytes | None) -> None:
        assert self._access is not None
        entering.exchange = self._access.exchange(method)
        entering.method = method
        if entering.exchange is None:
            self._ends(entering.connection)
            offered = LoginRefused(
                f"authentication method {method[:40]!r} is not offered", ReasonCode.BAD_AUTHENTICATION_METHOD
            )
            self._refuse(entering.connection, offered, entering.connect)
        elif data is not None:
            self._step(entering, data)
        else:
            self._say(entering, ReasonCode.CONTINUE_AUTHENTICATION, b"")

    def auth(self, connection: Connection, auth: Auth) -> None:
        """Go on with an authentication, or begin a re-authentication. Raises ProtocolError if no AUTH may come now."""
        entering = self._entering.get(connection)
        method = auth.properties.authentication_method
        if auth.reason_code == ReasonCode.RE_AUTHENTICATE:
            self._begin_again(connection, entering, method or "", auth.properties.authentication_data)
            return
        if entering is None or entering.exchange is None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
        if auth.reason_code != ReasonCode.CONTINUE_AUTHENTICATION or method != entering.method:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH does not go on with what was begun [MQTT-4.12.0-5]")
        self._step(entering, auth.properties.authentication_data or b"")

    def _begin_again(self, connection: Connection, entering: _Entering | None, method: str, data: bytes | None) -> None:
        """Re-authentication: only with the method of the CONNECT [MQTT-4.12.1-1]."""
        if connection.phase is not Phase.OPEN or entering is not None or not connection.auth_method:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH: re-authentication is not possible now")
        if method != connection.auth_method:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH: another method than in CONNECT [MQTT-4.12.1-1]")
        assert self._access is not None
        again = _Entering(connection, Connect(), again=True, source=source_of(connection.host))
        late_s = connection.turn.now_s + self._access.settings.reauthentication_timeout_s
        self._deadlines.set((connection, "auth"), late_s, partial(self._too_late, again))
        self._waits(again)
        self._begin(again, method, data)

    def _too_late(self, entering: _Entering) -> None:
        """Close a connection whose re-authentication took longer than auth.reauthentication_timeout_s."""
        if self._ends(entering.connection) is entering:
            late = LoginRefused("auth.reauthentication_timeout_s is over", ReasonCode.NOT_AUTHORIZED)
            self._refuse(entering.connection, late, entering.connect)

    def _step(self, entering: _Entering, data: bytes) -> None:
        exchange, connection = entering.exchange, entering.connection
        assert exchange is not None
        assert self._access is not None
        had_begun, entering.has_begun = entering.has_begun, True
        try:
            if not had_begun:
                challenge = exchange.first(data)
                refused = self._access.attempts.refuses(entering.source, exchange.username)
                if refused is not None and not entering.again:
                    self._fails(entering, refused)
                else:
                    self._say(entering, ReasonCode.CONTINUE_AUTHENTICATION, challenge)
                return
            refused = self._access.attempts.refuses(entering.source, exchange.username)
            if refused is not None and not entering.again:  # others at its address failed meanwhile
                self._fails(entering, refused)
                return
            proof = exchange.final(data)
        except ScramFailed as error:
            entering.connect.username = exchange.username or entering.connect.username
            self._fails(entering, LoginRefused(str(error), ReasonCode.NOT_AUTHORIZED, is_failure=had_begun))
            return
        identity = Identity(exchange.username, verifier=exchange.verifier)
        self._count(entering, exchange.username, identity)
        if entering.again:
            self._proven_again(entering, identity, proof)
            return
        entering.connect.properties.authentication_data = proof  # for the CONNACK
        connection.auth_method = entering.method
        self._answered(entering, identity)

    def _fails(self, entering: _Entering, refused: LoginRefused) -> None:
        """End an exchange with a refusal."""
        assert entering.exchange is not None
        self._count(entering, entering.exchange.username, refused)
        self._ends(entering.connection)
        self._deadlines.cancel((entering.connection, "auth"))
        self._refuse(entering.connection, refused, entering.connect)

    def _proven_again(self, entering: _Entering, identity: Identity, proof: bytes) -> None:
        connection = entering.connection
        self._ends(connection)
        self._deadlines.cancel((connection, "auth"))
        known = connection.identity
        if known is None or identity.username != (known.login or known.username):
            refusal = LoginRefused("re-authentication as somebody else", ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, refusal, Connect(client_id=connection.client_id, username=identity.username))
            return
        connection.identity = replace(known, verifier=identity.verifier)
        self._say(entering, ReasonCode.SUCCESS, proof)

    def _say(self, entering: _Entering, reason_code: ReasonCode, data: bytes) -> None:
        properties = Properties(authentication_method=entering.method, authentication_data=data or None)
        entering.connection.write(encode(Auth(reason_code, properties), 5))

    # --- leaving, and further checks

    def taken_over(self, connection: Connection) -> None:
        """Check a connection again that another process admitted and handed over."""
        identity = connection.identity
        connect = Connect(client_id=connection.client_id, username=connection.username)
        if identity is None or self._expires(connection, identity, connect):
            self.opened(connection)

    def opened(self, connection: Connection) -> None:
        """Check a new session's client again: its credentials may be invalid, or its client banned, by now."""
        if not self.recognition.is_known(connection):
            self._soon(partial(self.recognition.check, connection))
        self._ban_sweep.look_at(connection)  # it may have been banned while it came in

    def left(self, connection: Connection) -> None:
        """The connection has ended."""
        self._ends(connection)
        self._deadlines.cancel((connection, "auth"))
        self._places.left(connection)
        if connection.session is not None:
            self._registry.left(connection)

    def give_up(self, connection: Connection) -> None:
        """Refuse a client that has waited for longer than gateway.connect_timeout_s."""
        entering = self._entering.get(connection)
        if entering is not None and entering.exchange is not None:
            late = LoginRefused("the exchange took too long", ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, late, entering.connect)
            return
        unanswered = LoginRefused("no answer about this client in time", ReasonCode.SERVER_UNAVAILABLE)
        known = Connect(client_id=connection.client_id, username=connection.username)
        self._refuse(connection, unanswered, entering.connect if entering is not None else known, unanswered.message)


def _words(ban: Ban) -> str:
    return f"{ban.kind.replace('_id', '')} {ban.value}"


def _named_outside(connection: Connection) -> str:
    """The namespace of the listener or, if it has none, of the client's certificate; empty: neither has one."""
    entrance = connection.entrance
    return (entrance.namespace if entrance is not None else "") or connection.peer_namespace
