"""CONNECT and AUTH: nobody gets a session before it is known who it is. No I/O; answers may come later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from gateway.auth.access import NO_REQUESTS, Access
from gateway.auth.bans import Ban, Bans
from gateway.auth.identity import Credentials, Identity, Refused, Verdict
from gateway.auth.scram import ScramExchange, ScramFailed
from gateway.codec import encode
from gateway.connection import Connection, Phase
from gateway.errors import ProtocolError
from gateway.guard import Guard
from gateway.packets import Auth, Connect
from gateway.properties import Properties
from gateway.quotas import Quotas
from gateway.reason_codes import ReasonCode
from gateway.registry import SessionRegistry
from gateway.tenants import Tenants, login_name, settled
from store.audit import Audit, AuditEvent
from store.deadlines import Deadlines
from store.namespaces import Namespace
from store.ratelimit import RateLimitedLog

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


class Admission:
    """Owner of who waits to be let in (for gateway.connect_timeout_s at most), or is in the midst of an exchange."""

    def __init__(
        self,
        access: Access | None,
        guard: Guard,
        quotas: Quotas,
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
        self._registry = registry
        self._deadlines = deadlines
        self._events = events
        self._bans = bans
        self._tenants = tenants
        self._audit = audit
        self._entering: dict[Connection, _Entering] = {}
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
            if self._enters(connection, connect, Identity()) is not None:
                self._quotas.entered(connection, "")
                self._registry.open(connection, connect)
            return
        connection.version = connect.protocol_version
        entering = _Entering(connection, connect)
        if len(self._entering) >= access.max_waiting:
            self._refuse(connection, Refused("auth.max_waiting clients wait already", ReasonCode.SERVER_BUSY), connect)
            return
        self._entering[connection] = entering
        if method is not None:
            self._begin(entering, method, connect.properties.authentication_data)
            return
        username = login_name(connect.username, names.name, access.namespace_separator)
        credentials = Credentials(
            connect.client_id, username, connect.password, connection.peer, connection.peer_identity, names.name
        )
        access.authenticate(credentials, partial(self._answered, entering))
        if connection in self._entering and connection.phase is Phase.NEW:
            connection.wait()

    def _answered(self, entering: _Entering, verdict: Verdict) -> None:
        """It is known who the client is, or that it is not to come in."""
        connection = entering.connection
        if self._entering.get(connection) is not entering:
            return  # it left meanwhile
        if not isinstance(verdict, Identity):
            del self._entering[connection]
            self._refuse(connection, verdict or Refused("nobody knows these credentials"), entering.connect)
            return
        assert self._access is not None
        connect = entering.connect
        if connect.client_id and not self._access.may_be_called(verdict, connect.client_id):
            del self._entering[connection]
            refusal = Refused(
                f"user {verdict.username} may not be called {connect.client_id}", ReasonCode.NOT_AUTHORIZED
            )
            self._refuse(connection, refusal, connect)
            return
        identity = self._enters(connection, connect, verdict)
        if identity is None or self._is_banned(connection, connect, identity.account, connect.client_id):
            del self._entering[connection]
            return
        if self._access.needs_client_id(identity):
            del self._entering[connection]
            unbound = Refused(UNBOUND.format(identity.username), ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, unbound, connect)
            return
        connection.identity = identity
        self._guard.check_will(connection, connect, partial(self._will_checked, entering))
        if connection in self._entering and connection.phase is Phase.NEW:
            connection.wait()

    def _will_checked(self, entering: _Entering, allowed: bool) -> None:
        connection = entering.connection
        if self._entering.pop(connection, None) is not entering:
            return
        identity = connection.identity
        if not allowed:
            refusal = Refused("its will is not allowed", ReasonCode.NOT_AUTHORIZED)
            self._refuse(connection, refusal, entering.connect)
            return
        assert identity is not None
        if not self._quotas.may_enter(identity.account, entering.connect.client_id):
            refusal = Refused(f"quota.user_connections of {identity.username} is reached", ReasonCode.QUOTA_EXCEEDED)
            self._refuse(connection, refusal, entering.connect)
        elif self._expires(connection, identity, entering.connect):
            self._quotas.entered(connection, identity.account)
            self._guard.watch(connection, identity)
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

    def _refuse(self, connection: Connection, refused: Refused, connect: Connect) -> None:
        """`connect`: what the client said of itself."""
        self.refused[refused.reason_code.name.lower()] += 1
        peer = connection.peer
        self._events.warning("auth", "%s: refused: %s", peer, refused.message)
        user, reason = connect.username or "", refused.message
        self._audit.note(AuditEvent.REFUSED, user=user, client_id=connect.client_id, address=peer, reason=reason)
        connection.close(refused.reason_code)

    # --- the enhanced kind

    def _begin(self, entering: _Entering, method: str, data: bytes | None) -> None:
        assert self._access is not None
        entering.exchange = self._access.exchange(method)
        entering.method = method
        if entering.exchange is None:
            self._entering.pop(entering.connection, None)
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
        self._entering[connection] = again = _Entering(connection, Connect(), again=True)
        self._begin(again, method, data)

    def _step(self, entering: _Entering, data: bytes) -> None:
        exchange, connection = entering.exchange, entering.connection
        assert exchange is not None
        try:
            if not entering.has_begun:
                entering.has_begun = True
                self._say(entering, ReasonCode.CONTINUE_AUTHENTICATION, exchange.first(data))
                return
            proof = exchange.final(data)
        except ScramFailed as error:
            self._entering.pop(connection, None)
            entering.connect.username = exchange.username or entering.connect.username
            self._refuse(connection, Refused(str(error), ReasonCode.NOT_AUTHORIZED), entering.connect)
            return
        identity = Identity(exchange.username, verifier=exchange.verifier)
        if entering.again:
            self._proven_again(entering, identity, proof)
            return
        entering.connect.properties.authentication_data = proof  # for the CONNACK
        connection.auth_method = entering.method
        self._answered(entering, identity)

    def _proven_again(self, entering: _Entering, identity: Identity, proof: bytes) -> None:
        connection = entering.connection
        self._entering.pop(connection, None)
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
        self._entering.pop(connection, None)
        self._tenants.left(connection)
        if connection.identity is not None:
            self._quotas.left(connection, connection.identity.account)

    def is_known(self, connection: Connection) -> bool:
        """Whether what let a client in still does."""
        return connection.identity is None or self._access is None or self._access.still_knows(connection.identity)

    def is_known_still(self, connection: Connection) -> bool:
        """After a reload: who would not be let in by what let him in has to go."""
        if self.is_known(connection):
            return True
        self.refused["not_authorized"] += 1
        connection.close(ReasonCode.NOT_AUTHORIZED, GONE[bool(connection.identity and connection.identity.key)])
        return False

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
