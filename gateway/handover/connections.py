"""A connection's state out of its objects, and into those of another process. No I/O."""

from __future__ import annotations

from gateway.auth.identity import Identity
from gateway.auth.permissions import parse_rules
from gateway.auth.rule_sources import source_of
from gateway.handover.sessions import PlaceOf, RefOf, handed_session
from gateway.handover.state import HandedConnection, HandedIdentity
from gateway.mqtt._mqtt import link_aliases, link_rest, put_into_link
from gateway.mqtt.topics import TopicAliases
from gateway.sessions.connection import Connection, Phase


def can_travel(connection: Connection) -> bool:
    """True if a connection can be handed over: there is no TLS and no WebSocket between it and its socket."""
    return connection.fd >= 0 and connection.transport is not None and connection.phase is not Phase.CLOSED


def is_blank(connection: Connection) -> bool:
    """True if a connection has not received a whole CONNECT yet."""
    return connection.phase is Phase.NEW and not connection.version and not connection.waiting


def handed_connection(connection: Connection, listener: int, ref_of: RefOf, place_of: PlaceOf) -> HandedConnection:
    """A connection that can_travel(), with its session if it has one; nothing is to be under way for that."""
    address, session = connection.address, connection.session
    now_s = connection.turn.now_s
    return HandedConnection(
        listener=listener,
        address=address if isinstance(address, tuple) else None,
        rest=link_rest(connection),
        unsent=connection.transport.held_bytes() if connection.waiting_bytes else b"",
        silent_s=max(0.0, now_s - connection.last_seen_s),
        session=handed_session(session, ref_of, place_of) if session is not None else None,
        version=connection.version,
        keep_alive_s=connection.keep_alive_s,
        max_packet_out=connection.max_packet_out,
        ack_limit=connection.ack_limit,
        alias_limit=connection.alias_limit,
        aliases_out=list(link_aliases(connection).items()),
        aliases_in=connection.aliases.names if connection.aliases is not None else {},
        opened_ms=connection.opened_ms,
        lost=connection.lost,
        is_bridge=bool(connection.is_bridge),
        keep_will=connection.keep_will,
        tells_problems=connection.tells_problems,
        auth_method=connection.auth_method,
        identity=handed_identity(connection.identity) if connection.identity is not None else None,
        namespace=connection.names.name,
    )


def put_into_connection(handed: HandedConnection, connection: Connection) -> None:
    """Put the state of a handed connection into a new one, which has its session."""
    connection.version, connection.is_bridge = handed.version, handed.is_bridge
    connection.keep_alive_s = handed.keep_alive_s
    connection.last_seen_s = connection.turn.now_s - handed.silent_s
    connection.max_packet_out, connection.ack_limit = handed.max_packet_out, handed.ack_limit
    connection.alias_limit, connection.opened_ms = handed.alias_limit, handed.opened_ms
    connection.lost = handed.lost
    connection.keep_will, connection.tells_problems = handed.keep_will, handed.tells_problems
    connection.auth_method = handed.auth_method
    if handed.aliases_in:
        connection.aliases = TopicAliases()
        for alias, topic_name in handed.aliases_in.items():
            connection.aliases.give(alias, topic_name)
    put_into_link(connection, handed.rest, dict(handed.aliases_out))


def handed_identity(identity: Identity) -> HandedIdentity:
    return HandedIdentity(
        username=identity.username,
        rules=None if identity.rules is None else [source_of(rule) for rule in identity.rules],
        expires_ms=identity.expires_ms,
        verifier=identity.verifier,
        namespace=identity.namespace,
        login=identity.login,
        key=identity.key,
        owns_client_id=identity.owns_client_id,
    )


def taken_identity(handed: HandedIdentity) -> Identity:
    """Raises AuthError if its rules cannot be read."""
    rules = None if handed.rules is None else parse_rules(handed.rules, max(len(handed.rules), 1))
    return Identity(
        handed.username,
        rules,
        handed.expires_ms,
        handed.verifier,
        handed.namespace,
        handed.login,
        handed.key,
        handed.owns_client_id,
    )
