"""CONNECT and AUTH: nobody gets a session before it is known who it is. No I/O; answers may come later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from gateway.access.guard import Guard
from gateway.access.quotas import Quotas
from gateway.auth.access import NO_REQUESTS, Access
from gateway.auth.attempts import LIMITS
from gateway.auth.bans import Ban, Bans
from gateway.auth.identity import UNKNOWN, Attempt, Credentials, Identity, Refused, Verdict
from gateway.auth.namespaces import login_name, settled
from gateway.auth.scram import ScramExchange, ScramFailed
from gateway.auth.sources import source_of
from gateway.clients.counting import Counting
from gateway.clients.registry import SessionRegistry
from gateway.clients.tenants import Tenants
from gateway.mqtt.codec import encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import Auth, Connect
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection, Phase, address_of
from store.audit import Audit, AuditEvent
from store.namespaces import Namespace
from store.ratelimit import RateLimitedLog
from store.state.deadlines import Deadlines

SLOW_PART = 50
"""Where logins failed lately, this part of those that may wait from one address may be of one user."""
MAX_EXPIRY_AHEAD_S = 10 * 365 * 24 * 3600
GONE = ("its password was changed or taken away", "the key of its token was taken away")
UNBOUND = (
    "its rules have %c, the client identifier, and user {} may have any; write %u in the rules, or bind client "
    'identifiers to users with auth.client_ids = "%u-*" or auth.jwt_client_id_claim'
)


@dataclass(slots=True)
class _Entering:
    """A client that is being judged: at its CONNECT, or (`again`) when it authenticates once more."""

    connection: Connection
    connect: Connect
    exchange: ScramExchange | None = None
    method: str = ""
    has_begun: bool = False  # the exchange's first message was answered
    again: bool = False
    source: str = ""  # what its address is counted by
    username: str = ""  # as it logs in
    attempt: Attempt = field(default_factory=Attempt)

    @property
    def key(self) -> tuple[str, str]:
        return self.source, self.username


class Admission:
    """Owner of who waits to be let in (for gateway.connect_timeout_s at most), or is in the midst of an exchange."""

    def __init__(
        self,
        access: Access | None,
        guard: Guard,
        quotas: Quotas,
        counting: Counting,
        registry: SessionRegistry,
        deadlines: Deadlines,
        events: RateLimitedLog,
        bans: Bans,
        tenants: Tenants,
        audit: Audit,
    ) -> None:
        """Without `access` everybody comes in who is not banned."""
        self._access = access
        self._guard = guard
        self._quotas = quotas
        self._counting = counting
        self._registry = registry
        self._deadlines = deadlines
        self._events = events
        self._bans = bans
        self._tenants = tenants
        self._audit = audit
        self._entering: dict[Connection, _Entering] = {}
        self._entering_from: dict[str | tuple[str, str], int] = {}  # of these, by source, and by that and user
        self.abandoned = 0
        self._again = 0  # of these, those that are in already
        self.refused: Counter[str] = Counter({"not_authorized": 0})  # connections by reason code

    @property
    def waiting(self) -> int:
        """Clients whose answer is still to come."""
        return len(self._entering)

    # --- CONNECT

    def connect(self, connection: Connection, connect: Connect) -> None:
        """Let the client in, now or once its answer is there; or refuse it. Raises ProtocolError."""
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
                refusal = Refused("no authentication method is offered", ReasonCode.BAD_AUTHENTICATION_METHOD)
                self._refuse(connection, refusal, connect)
                return
            connection.version = connect.protocol_version
            if self._enters(connection, connect, Identity()) is not None and self._has_room(connection, connect, ""):
                self._quotas.entered(connection, "")
                self._guard.watch(connection, self._counting.watch(connection))
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
        """Add one to those that wait; refuse it if there are enough."""
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
        self._refuse(entering.connection, Refused(why, ReasonCode.SERVER_BUSY), entering.connect)
        return False

    def _ends(self, connection: Connection) -> _Entering | None:
        """Take out one of those that wait; None: it is not among them."""
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

    def _count(self, entering: _Entering, username: str, verdict: Identity | Refused) -> None:
        """Note that a client was right or wrong; an address from which too many were is banned."""
        assert self._access is not None
        attempts, source = self._access.attempts, entering.source
        if isinstance(verdict, Identity) and verdict.username:
            attempts.succeeded(source, username)
        elif isinstance(verdict, Refused) and verdict.is_failure and attempts.failed(source, username, verdict):
            settings = self._access.settings
            until_ms = entering.connection.turn.now_ms + settings.ban_s * 1000
            reason = f"{settings.ban_failures} failed logins"
            self._bans.ban("address", source, until_ms, reason, automatic=True)
            self._events.warning("ban", "%s is banned for %d s: %s", source, settings.ban_s, reason)

    def _answered(self, entering: _Entering, verdict: Verdict) -> None:
        """It is known who the client is, or that it is not to come in."""
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
        connect = entering.connect
        if connect.client_id and not self._access.may_be_called(verdict, connect.client_id):
            self._ends(connection)
            refusal = Refused(
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
            unbound = Refused(UNBOUND.format(identity.username), ReasonCode.NOT_AUTHORIZED)
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
            refusal = Refused("its will is not allowed", ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, refusal, entering.connect)
            return
        assert identity is not None
        has_room = self._has_room(connection, entering.connect, identity.account)
        if has_room and self._expires(connection, identity, entering.connect):
            self._quotas.entered(connection, identity.account)
            self._guard.watch(connection, self._counting.watch(connection))
            try:
                self._registry.open(connection, entering.connect)
            except ProtocolError as error:
                connection.refuse(error)

    def _enters(self, connection: Connection, connect: Connect, identity: Identity) -> Identity | None:
        """Have a client be of its namespace. None: it is refused."""
        entrance = connection.entrance
        named = (
            ("the listener", entrance.namespace if entrance is not None else ""),
            ("its certificate", connection.peer_namespace),
        )
        separator = self._access.namespace_separator if self._access is not None else ""
        found = settled(identity, named, separator)
        if isinstance(found, Identity):
            refused = self._tenants.enter(connection, connect, found.namespace)
            if refused is None:
                return found
            found = refused
        self._refuse(connection, found, connect)
        return None

    def _has_room(self, connection: Connection, connect: Connect, user: str) -> bool:
        """Whether a client's user and namespace may have one more connection. If not it is refused."""
        session = self._registry.sessions.get(connect.client_id)
        why = self._quotas.fault(user, connection.names.name, session.link if session is not None else None)
        if why:
            self._refuse(connection, Refused(why, ReasonCode.QUOTA_EXCEEDED), connect)
        return not why

    def _expires(self, connection: Connection, identity: Identity, connect: Connect) -> bool:
        """See to the end of what was found out. False: that is now."""
        if identity.expires_ms is None:
            self._deadlines.cancel(connection)
            return True
        left_s = (identity.expires_ms - connection.turn.now_ms) / 1000
        if left_s <= 0:
            self._refuse(connection, Refused("its credentials have expired", ReasonCode.NOT_AUTHORIZED), connect)
            return False
        at_s = connection.turn.now_s + min(left_s, MAX_EXPIRY_AHEAD_S)
        self._deadlines.set(connection, at_s, partial(self._expired, connection))
        return True

    def _expired(self, connection: Connection) -> None:
        connection.close(ReasonCode.MAXIMUM_CONNECT_TIME, "its credentials have expired")

    def _is_banned(self, connection: Connection, connect: Connect, user: str, client_id: str) -> bool:
        """Refuse a client that is. Names are those of the log, as operators see them."""
        if not len(self._bans):
            return False
        ban = self._bans.refuses(connection.host, user, client_id, connection.turn.now_ms)
        if ban is not None:
            connection.version = connect.protocol_version
            refusal = Refused(f"{_words(ban)} is banned: {ban.reason}", ReasonCode.BANNED)
            self._refuse(connection, refusal, connect)
        return ban is not None

    def _refuse(self, connection: Connection, refused: Refused, connect: Connect, told: str = "") -> None:
        """`connect`: what the client said of itself; `told`: what it may know of the reason."""
        self.refused[refused.reason_code.name.lower()] += 1
        peer = connection.peer
        self._events.warning("auth", "%s: refused: %s", peer, refused.message)
        user, reason = connect.username or "", refused.message
        self._audit.note(AuditEvent.REFUSED, user=user, client_id=connect.client_id, address=peer, reason=reason)
        connection.close(refused.reason_code, told)

    # --- the enhanced kind

    def _begin(self, entering: _Entering, method: str, data: bytes | None) -> None:
        assert self._access is not None
        entering.exchange = self._access.exchange(method)
        entering.method = method
        if entering.exchange is None:
            self._ends(entering.connection)
            offered = Refused(
                f"authentication method {method[:40]!r} is not offered", ReasonCode.BAD_AUTHENTICATION_METHOD
            )
            self._refuse(entering.connection, offered, entering.connect)
        elif data is not None:
            self._step(entering, data)
        else:
            self._say(entering, ReasonCode.CONTINUE_AUTHENTICATION, b"")

    def auth(self, connection: Connection, auth: Auth) -> None:
        """Raises ProtocolError if no AUTH may come now."""
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
        """The client does not go on with what it began."""
        if self._ends(entering.connection) is entering:
            late = Refused("auth.reauthentication_timeout_s is over", ReasonCode.NOT_AUTHORIZED)
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
            proof = exchange.final(data)
        except ScramFailed as error:
            entering.connect.username = exchange.username or entering.connect.username
            self._fails(entering, Refused(str(error), ReasonCode.NOT_AUTHORIZED, is_failure=had_begun))
            return
        identity = Identity(exchange.username, verifier=exchange.verifier)
        self._count(entering, exchange.username, identity)
        if entering.again:
            self._proven_again(entering, identity, proof)
            return
        entering.connect.properties.authentication_data = proof  # for the CONNACK
        connection.auth_method = entering.method
        self._answered(entering, identity)

    def _fails(self, entering: _Entering, refused: Refused) -> None:
        """An exchange ends with a refusal."""
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
            refusal = Refused("re-authentication as somebody else", ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, refusal, Connect(client_id=connection.client_id, username=identity.username))
            return
        connection.identity = replace(known, verifier=identity.verifier)
        self._say(entering, ReasonCode.SUCCESS, proof)

    def _say(self, entering: _Entering, reason_code: ReasonCode, data: bytes) -> None:
        properties = Properties(authentication_method=entering.method, authentication_data=data or None)
        entering.connection.write(encode(Auth(reason_code, properties), 5))

    # --- leaving, and being judged again

    def left(self, connection: Connection) -> None:
        self._ends(connection)
        self._deadlines.cancel((connection, "auth"))
        self._tenants.left(connection)
        if connection.session is not None:
            self._counting.left(connection.session)
        self._quotas.left(connection, connection.username)

    def is_known(self, connection: Connection) -> bool:
        """Whether what let a client in still does."""
        return connection.identity is None or self._access is None or self._access.still_knows(connection.identity)

    def give_up(self, connection: Connection) -> None:
        """It has waited for too long."""
        entering = self._entering.get(connection)
        if entering is not None and entering.exchange is not None:
            late = Refused("the exchange took too long", ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, late, entering.connect)
            return
        unanswered = Refused("no answer about this client in time", ReasonCode.SERVER_UNAVAILABLE)
        known = Connect(client_id=connection.client_id, username=connection.username)
        self._refuse(connection, unanswered, entering.connect if entering is not None else known, unanswered.message)

    def is_known_still(self, connection: Connection) -> bool:
        """After a reload: who would not be let in by what let him in has to go."""
        if self.is_known(connection):
            return True
        self.refused["not_authorized"] += 1
        connection.close(ReasonCode.NOT_AUTHORIZED, GONE[bool(connection.identity and connection.identity.key)])
        return False

    @property
    def limited(self) -> Mapping[str, int]:
        """Attempts that were refused unheard, by which limit."""
        return self._access.attempts.limited if self._access is not None else dict.fromkeys(LIMITS, 0)

    @property
    def failures(self) -> int:
        return self._access.attempts.failures if self._access is not None else 0

    @property
    def requests(self) -> Mapping[str, int]:
        """To other servers, about clients: how many came to what."""
        return self._access.requests if self._access is not None else NO_REQUESTS


def _words(ban: Ban) -> str:
    return f"{ban.kind.replace('_id', '')} {ban.value}"


def _named_outside(connection: Connection) -> str:
    """The namespace that the listener names, or the certificate."""
    entrance = connection.entrance
    return (entrance.namespace if entrance is not None else "") or connection.peer_namespace
