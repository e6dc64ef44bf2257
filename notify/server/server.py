"""The sockets of a store: gateways and clients connect here. What they say is for notify.server.conversation.

Everything is written once per turn of the loop; a connection whose transport is full is left alone until it
has room.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from notify.links.address import StoreAddress
from notify.links.tls import CertifiedRoles, names_of
from notify.local.hub import Hub
from notify.requests.users import Permission, UserJudge
from notify.server.applying import ApplyingSteps
from notify.server.arrival import Arrival
from notify.server.conversation import Conversation
from notify.server.lead import StoreLead, WatchedLead
from notify.server.line import WireCounters
from notify.server.listening import StoreListeners
from notify.server.peers import Peers
from notify.server.rights_review import OpenRights, RightsReview
from notify.settings import WireSettings
from notify.steps import Steps
from store.audit import Audit, AuditEvent
from store.errors import StoreError, WireError
from store.files.descriptors import first_of_operators, first_of_store
from store.ratelimit import RateLimitedLog
from store.wire.client.address import StorePort
from store.wire.frames import encode
from store.wire.handshake import NO_TOKENS
from store.wire.messages import Refused, RefusedReason, Role
from store.wire.sockets import widen, write

log = logging.getLogger("penstock.wire")

HIGH_WATER_BYTES = 256 << 10
LOOKED_AT = 100
"""Connections that are compared with the bans in one turn."""


class StoreServer:
    """Owner of the connections to a store. All calls are made from the loop that is running when it is made."""

    def __init__(
        self,
        hub: Hub,
        settings: WireSettings,
        tokens: Mapping[str, str | None],
        audit: Audit | None = None,
        has_gateway: bool = False,
        of_namespaces: Mapping[str, str] = NO_TOKENS,
    ) -> None:
        """`tokens`: by role, what a peer has to show (None: nothing); a role that is missing is not let in.

        `has_gateway`: the store has one in this process, which does the store's upkeep. `of_namespaces`: by namespace,
        what lets a client into that one alone.
        """
        self.hub = hub
        self.audit = audit or Audit()
        self.settings = settings
        self.figures = WireCounters()
        self.bad_input: Counter[str] = Counter()
        self.connections: set[WireConnection] = set()
        self.connections_total = 0
        self._loop = asyncio.get_running_loop()
        self._tokens = tokens
        self._of_namespaces = of_namespaces
        self.roles = CertifiedRoles(())
        self.judge: UserJudge | None = None  # of clients; None: users are not judged
        store_name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
        self._has_gateway = has_gateway
        self.peers = Peers(hub, settings, store_name, self._loop.time)
        self.events = RateLimitedLog(log)
        self._dirty: dict[WireConnection, None] = {}
        self._listeners = StoreListeners(settings, self)
        self._progress = asyncio.Event()
        self._upkeep = Steps(self.hub.tick, self._loop.call_soon)
        self._cleaning_up = Steps(self.peers.go_on, self._loop.call_soon)
        self.review = RightsReview(self._loop.call_soon)
        self._applying = ApplyingSteps(self.hub, self._loop.call_soon, self)
        self.is_stopping = False
        self._lead: WatchedLead | None = None  # None: nothing can take it from this store

    # --- listening

    async def listen(self, address: StoreAddress, tls: Callable[[], ssl.SSLContext] | None) -> str:
        """Accept peers from now on; returns the URL with the port that it got. Raises WireListenError."""
        if tls is not None and not address.path:
            self.roles = CertifiedRoles(self.settings.tls_roles)
        return await self._listeners.listen(address, tls)

    def arrives(self) -> asyncio.Protocol:
        return WireConnection(self)

    def not_secure(self, address: object, why: str) -> None:
        self.found_bad("tls", _shown(address), why)

    async def listen_privately(self, path: Path, *roles: Role) -> None:
        """Listen at a Unix socket for this process's user alone, in these roles and without a token.
        Raises OSError.
        """
        tokens = {role.value: None for role in roles}
        await self._listeners.listen_privately(path, lambda: WireConnection(self, tokens))

    # --- the loop

    def safe_advanced(self) -> None:
        self.hub.safe_advanced()
        if self._lead is not None:
            for connection in self.connections:
                if connection.is_withholding:
                    self.wake(connection)

    def led_by(self, lead: StoreLead) -> None:
        """Make this store one of a cluster: it answers as long as `lead` allows it."""
        self._lead = WatchedLead(lead, self.peers.wait_for_all)

    def why_not_serving(self) -> str:
        """The reason why this store may not answer now; empty: it may."""
        return self._lead.why_not_serving() if self._lead is not None else ""

    def is_let_go(self) -> bool:
        """True if this store may not answer now: then its connections end at once, and nothing wrong is answered."""
        if not (why := self.why_not_serving()):
            return False
        if self.connections:
            self.events.warning("cluster", "%s; all connections end", why)
        for connection in list(self.connections):
            connection.abort()
        return True

    def tick(self) -> None:
        """Call this every few hundredths of a second."""
        self._applying.tick()
        self.is_let_go()
        now_s = self._loop.time()
        for connection in list(self.connections):
            connection.tick(now_s)
        self.events.tell_left_out()
        self.audit.close_window()

    def do_upkeep(self) -> None:
        """The work that may store something. Peers that cannot be heard meanwhile keep their leases."""
        if self.is_let_go():
            return
        if not self._has_gateway:
            self._upkeep.start()
        self.peers.tick()
        self._cleaning_up.start()

    def not_applied(self, error: StoreError) -> None:
        self.events.warning("applying", "%s; messages are given to their queues once that succeeds", error)

    def wake(self, connection: WireConnection) -> None:
        """Send what it has to send at the end of this turn."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty[connection] = None

    def _flush(self) -> None:
        self._applying.go_on()
        dirty, self._dirty = self._dirty, {}
        if not self.is_let_go():
            for connection in dirty:
                connection.flush()
        self._progress.set()

    def judge_again(self) -> None:
        """The permissions were replaced: users who may not do everything connect again, and are judged anew."""
        for connection in list(self.connections):
            connection.judge_again()

    def unready(self) -> str:
        """The reason why peers had better not be sent here now; empty if they may be."""
        if not self._listeners.is_open or self.is_stopping:
            return "not listening"
        return str(self.hub.messages.fault() or "")

    def bans_were_set(self) -> None:
        """Clients that are banned now are sent away, some in a turn."""
        here = deque(self.connections)

        def some() -> bool:
            for _ in range(min(LOOKED_AT, len(here))):
                here.popleft().leave_if_banned()
            return bool(here)

        Steps(some, self._loop.call_soon).start()

    def found_bad(self, kind: str, address: str, why: object, arrival: Arrival | None = None) -> None:
        """`arrival`: what is known of a peer that was not let in."""
        self.bad_input[kind] += 1
        shown = arrival.shown if arrival is not None else address
        self.events.warning("bad_input", "peer %s: %s; its connection is closed", shown, why)
        user, origin = (arrival.said_user, arrival.origin.address) if arrival is not None else ("", "")
        self.audit.note(AuditEvent.PEER_REFUSED, user=user, address=origin or address, reason=str(why))

    # --- the end

    async def close(self, timeout_s: float) -> None:
        """Accept no new connections, answer the appends once they are safe, then say goodbye to all peers."""
        self._listeners.close()
        self.is_stopping = True
        for connection in self.connections:
            connection.let_read(False)
        try:
            async with asyncio.timeout(timeout_s):
                await self._until(lambda: not any(each.has_unanswered for each in self.connections))
                for connection in list(self.connections):
                    connection.say_goodbye("the store stops")
                await self._until(lambda: not self.connections)
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
        self._applying.stop()
        self._upkeep.stop()
        self._cleaning_up.stop()
        self.review.stop()
        self._listeners.remove_sockets()
        self.events.close()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that connections do."""
        while not condition():
            self._progress.clear()
            await self._progress.wait()

    def lost(self, connection: WireConnection) -> None:
        self.connections.discard(connection)
        self._progress.set()


class WireConnection(asyncio.Protocol):
    """A socket with a peer at its other end."""

    def __init__(self, server: StoreServer, tokens: Mapping[str, str | None] | None = None) -> None:
        """`tokens`: in place of those of the server, and of its certificates."""
        self._server = server
        self._roles = server.roles if tokens is None else CertifiedRoles(())
        self._descriptors = first_of_operators() if tokens is None else first_of_store()
        self._transport: asyncio.Transport | None = None
        self._is_writable = True
        self._is_read = True
        self._unsent_bytes = 0
        self._check_user_s = 0.0
        self._address = "?"
        self._is_noted = False  # the audit log knows that it was let in
        self._tokens = tokens or server._tokens
        self._conversation = Conversation(
            server.peers, self._tokens, server.figures, partial(server.wake, self), server._of_namespaces
        )
        self._open_rights = OpenRights(self._conversation, server.peers.groups, self._take_away)

    @property
    def has_unanswered(self) -> bool:
        return self._conversation.has_unanswered

    @property
    def is_withholding(self) -> bool:
        return self._conversation.is_withholding

    @property
    def peer_name(self) -> str:
        """Empty before it has said who it is."""
        peer = self._conversation.peer
        return peer.name if peer is not None else ""

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's has another base
        self._address = _shown(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        widen(transport)
        server = self._server
        names = names_of(transport.get_extra_info("peercert"))
        self._conversation.arrival = Arrival(self._address, names, self._roles, server.judge, self._tokens)
        if server.is_stopping:  # it was still in its TLS handshake
            transport.abort()
            return
        server.connections_total += 1
        limit = self._limit_passed(transport)
        if why := server.why_not_serving():
            transport.write(encode(Refused(RefusedReason.NOT_LEADER, why)))
            transport.close()
            return
        if limit:
            transport.write(encode(Refused(RefusedReason.BUSY, limit)))
            server.found_bad("busy", self._address, limit)
            transport.close()
            return
        server.connections.add(self)

    def _limit_passed(self, transport: asyncio.Transport) -> str:
        """The limit that refuses one more connection; empty: none."""
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= self._descriptors:
            return f"all {self._descriptors} descriptors for this address are in use; raise the limit (ulimit -n)"
        if len(self._server.connections) >= self._server.settings.max_connections:
            return f"{self._server.settings.max_connections} connections are open already; see wire.max_connections"
        return ""

    def data_received(self, data: bytes) -> None:
        if self in self._server.connections and not self._server.is_let_go():
            self._feed(data)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._server.lost(self)
        if self._is_noted:
            self._note(AuditEvent.PEER_LEFT)
        self._conversation.lost()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._heard()
        self._server.wake(self)

    # --- in

    def _feed(self, data: bytes) -> None:
        """Give the conversation what came; without any, what it left for later."""
        conversation = self._conversation
        self._attempt(partial(conversation.received, data) if data else conversation.go_on)
        if not (self._is_read and conversation.is_idle):
            self.let_read(not conversation.is_full and not conversation.is_waiting)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do something for this connection. A failure ends this connection alone."""
        conversation = self._conversation
        try:
            action()
        except WireError as error:
            if conversation.peer is None:
                self._server.found_bad("refused", self._address, error, conversation.arrival)
            else:
                self._server.found_bad("malformed", self._address, error)
            conversation.close(str(error))
        except Exception:  # the edge of a connection
            self._server.bad_input["failed"] += 1
            log.exception("peer %s: a request could not be handled; its connection is closed", self._address)
            conversation.close("a request could not be handled")
        if not self._is_noted and conversation.peer is not None:
            self._is_noted = True
            self._note(AuditEvent.PEER_CONNECTED)

    def _note(self, event: AuditEvent, reason: str = "") -> None:
        """Write an event of an admitted peer to the audit log."""
        conversation, peer = self._conversation, self._conversation.peer
        assert peer is not None
        user, address = conversation.permits.name, conversation.arrival.origin.address or self._address
        reason = reason or peer.role or ""
        self._server.audit.note(event, user=user, client_id=peer.name, address=address, reason=reason)

    def leave_if_banned(self) -> None:
        """End the connection of a client that is banned."""
        why = self._conversation.why_banned()
        if why:
            self._server.events.warning("ban", "peer %s: cut off: %s", self._conversation.arrival.shown, why)
            self._note(AuditEvent.CUT_OFF, why)
            self.begin_anew(why)

    def _take_away(self, refused: Permission) -> None:
        """End what a peer's user has open and may no longer have."""
        why = f"{refused.action} {refused.topic}: not allowed any more"
        self._server.figures.not_permitted += 1
        self._server.events.warning("permission", "peer %s: %s", self._conversation.arrival.shown, why)
        self._note(AuditEvent.DENIED, why)
        self.begin_anew(why)

    def let_read(self, wanted: bool) -> None:
        wanted = wanted and not self._server.is_stopping
        if wanted != self._is_read and self._transport is not None and not self._transport.is_closing():
            self._is_read = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _heard(self) -> None:
        if self._conversation.peer is not None:
            self._conversation.peer.heard_s = self._server.peers.clock()

    # --- out

    def flush(self) -> None:
        """Write what there is, if there is room; look at requests that waited for it."""
        transport, conversation = self._transport, self._conversation
        if transport is None or not self._is_writable:
            return
        if conversation.fault is not None:
            self._attempt(conversation.check)
        self._attempt(self._write)
        if self._is_read and conversation.is_idle and not conversation.is_closing:
            return
        if conversation.is_closing:
            transport.close()
        elif conversation.is_full:
            self._feed(b"")
            self._server.wake(self)
        elif not conversation.is_waiting:
            self.let_read(True)

    def _write(self) -> None:
        chunks = self._conversation.outgoing()
        if chunks and self._transport is not None and not self._transport.is_closing():
            write(self._transport, chunks)

    # --- by the clock

    def tick(self, now_s: float) -> None:
        conversation, settings = self._conversation, self._server.settings
        transport = self._transport
        if transport is None:
            return
        if conversation.is_closing and now_s - conversation.said_s > settings.lease_ms / 1000:
            transport.abort()  # it does not even take our goodbye
        elif conversation.peer is None:
            if now_s - conversation.opened_s > settings.handshake_timeout_s:
                self._server.found_bad("handshake_timeout", self._address, "it has not said who it is in time")
                transport.abort()
        else:
            heartbeat_s = settings.heartbeat_ms / 1000
            if now_s - conversation.said_s >= heartbeat_s and self._is_writable:
                conversation.ping()
            if now_s >= self._check_user_s:  # whether it is idle or has something to say all the time
                self._check_user_s = now_s + heartbeat_s
                if fault := conversation.permits.fault(time.time_ns() // 1_000_000):
                    self.begin_anew(fault)
            self._server.review.tick(self._open_rights, now_s)
        unsent_bytes = transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes or conversation.is_judged:  # slow, but there; or not read meanwhile
            self._heard()
        self._unsent_bytes = unsent_bytes
        if conversation.is_full:
            self._server.wake(self)

    # --- the end

    def judge_again(self) -> None:
        if self._conversation.permits.user is not None:
            self.begin_anew("the files of users and permissions were read again")

    def begin_anew(self, reason: str) -> None:
        """End the connection and what it consumes: what the next one asks for is judged by what holds then."""
        self._server.peers.groups.left(self.peer_name)
        self.say_goodbye(reason)

    def say_goodbye(self, reason: str) -> None:
        self._conversation.close(reason)
        self._server.wake(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _shown(peername: object) -> str:
    """A peer's address, for people."""
    if isinstance(peername, tuple):
        return str(StorePort(*peername[:2]))
    return "on the Unix socket"
