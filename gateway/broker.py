"""The gateway's heart: one loop turn. What all connections brought in is stored at once, acknowledged and delivered.

data arrives on sockets → links fill the turn's batch → end_turn():
  store_batch()   append; deliver what grew; send the acknowledgements of what is safe
  deliver         sessions with room pull
  flush           one write per connection
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from gateway.access.certified import Certified
from gateway.access.connection_limits import ConnectionLimits
from gateway.access.guard import Guard
from gateway.access.quota_settings import QuotaSettings
from gateway.access.quotas import Quotas
from gateway.access.relief import Relief
from gateway.auth.access import Access
from gateway.auth.bans import Bans
from gateway.clients.admission import Admission
from gateway.clients.ban_sweep import BanSweep
from gateway.clients.counting import Counting
from gateway.clients.draining import Draining
from gateway.clients.judging import Judging
from gateway.clients.packet_rules import PacketRules
from gateway.clients.registry import SessionRegistry
from gateway.clients.tenants import Tenants
from gateway.delivery.delivery import Delivery
from gateway.delivery.exchange import Exchange
from gateway.delivery.expander import Expander
from gateway.delivery.shared_subscriptions import SharedSubscriptions
from gateway.delivery.subscriptions import Subscriptions
from gateway.delivery.sys_topics import SysTopics
from gateway.ending import Ending
from gateway.mqtt._mqtt import Turn, overdue, unsent
from gateway.mqtt.codec_primitives import Limits
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.audit import note_left, note_opened
from gateway.sessions.connection import MOST_REASON_CHARACTERS, Connection, Phase
from gateway.sessions.journal import Journal
from gateway.sessions.session import Session
from gateway.settings import GatewaySettings
from lightqueue.queues._queues import Queue
from lightqueue.queues.left_messages import Allowed, LeftMessage
from notify.api import Store, Told
from notify.steps import Steps
from store.audit import Audit, AuditEvent
from store.errors import StoreError
from store.ratelimit import RateLimitedLog
from store.state.deadlines import Deadlines
from store.wire.operator_messages import BansTold, Disconnect

log = logging.getLogger("penstock.gateway")

READ_BUFFER_BYTES = 256 << 10


class Loop(Protocol):
    """What is needed of an event loop."""

    def call_soon(self, callback: Callable[[], object]) -> object: ...

    def time(self) -> float: ...


class Broker:
    """Owner of the turn and of all connections, and through its parts of everything that a gateway knows."""

    def __init__(
        self,
        store: Store,
        settings: GatewaySettings,
        loop: Loop,
        access: Access | None = None,
        quota_settings: QuotaSettings | None = None,
        audit: Audit | None = None,
    ) -> None:
        """Without `access` everybody may do everything."""
        self.store, self.settings, self._loop = store, settings, loop
        self.read_buffer = read_buffer = bytearray(READ_BUFFER_BYTES)
        self.get_buffer: Callable[[int], bytearray] = lambda _: read_buffer
        self.connections = 0
        self._new: dict[Connection, float] = {}  # without a CONNECT so far, oldest first, and since when
        self._held: list[Connection] = []  # not listened to while the store has enough to do
        self._progressed: set[Session] = set()
        self.bad_input, self.turned_away = Counter[str](), Counter[str]()  # the latter: before they had a session
        self.keep_alive_timeouts, self.listening = 0, False
        self.waiting = 0  # messages not acknowledged by connected clients, or not sent, a second ago at most
        self.sockets_total = self.opened_total = self.most_online = self.turns = 0
        store.listen(self)
        self.draining: Draining | None = None
        ask = Ending(self, loop.call_soon).ask
        self.turn = Turn(ask, self.store_batch, self.end_turn, store.is_live_only, store.weigh)
        self.turn.checks_format, self.turn.settle = settings.check_payload_format, self._settle
        self.turn.max_user_properties = settings.max_user_properties
        self.packet_limits = Limits(settings.max_user_properties, settings.max_filters_per_packet)
        self._resting: deque[Callable[[], object]] = deque()  # what is left of those who sent much at once
        self._goes_on = False  # with that, in the loop's next turn
        self._was_behind = False  # as the store was told last
        self.turn.connecting_limit = settings.connecting_bytes
        self.turn.incomplete_limit = settings.incomplete_bytes
        self._set_clock()
        self._started_s, self.is_closed = self.turn.now_s, False
        self._next_second = 0.0
        self._upkeep = Steps(store.tick, self.soon)
        self.events = events = RateLimitedLog(log)
        self.audit = audit = audit or Audit()
        self.limits = ConnectionLimits(settings, events, audit)
        self.deadlines = Deadlines()
        self.journal = journal = Journal(store, self.turn, events)
        self.exchange = exchange = Exchange(store, journal, expander := Expander(self.soon))
        self.delivery = delivery = Delivery(store, settings, exchange, expander, self.soon)
        self.shared = SharedSubscriptions(store, settings, self.turn, journal, expander)
        if access is not None:
            self.shared.knows_users = lambda: access.knows_users
        self.sys_topics = SysTopics(self, settings.sys_interval_s)
        self.subscriptions = Subscriptions(
            store, settings, self.turn, journal, exchange, delivery, self.shared, self.sys_topics, self.soon
        )
        self.quotas = quotas = Quotas(quota_settings or QuotaSettings())
        self.relief = relief = Relief(self.turn, settings, quotas, events, audit, self.soon)
        self.clogged, self.unclogged, self.turn.shed = relief.clogged, relief.unclogged, relief.shed_incomplete
        self.counting = counting = Counting(store, access, self.store_batch, audit)
        self.certified = Certified(self.deadlines, lambda: self.turn.now_s, self.soon, self._disproved)
        self.bans = bans = Bans()
        self.guard = guard = Guard(access, bans, self.turn, events, audit, self.soon)
        self.registry = registry = SessionRegistry(
            store, settings, journal, exchange, delivery, self.shared, events, guard, self.soon, self.opened
        )
        self.tenants = tenants = Tenants(settings.max_namespaces)
        self.admission = admission = Admission(
            access, guard, quotas, counting, registry, self.deadlines, events, bans, tenants, audit
        )
        self.judging = Judging(admission, guard, registry, self.subscriptions, exchange, self.soon)
        self.ban_sweep = BanSweep(bans, store.bans, registry.sessions, self._new, self.soon, events)
        parts = (journal, registry, self.subscriptions, exchange, events, admission, guard, counting)
        self.rules = PacketRules(settings, self.turn, *parts, self.store_batch)

    def soon(self, callback: Callable[[], object]) -> None:
        """Have something done in the loop's next turn, unless the broker is closed by then."""
        self._loop.call_soon(partial(self._do, callback))

    def _do(self, callback: Callable[[], object]) -> None:
        if not self.is_closed:
            callback()

    # --- the turn

    def end_turn(self) -> None:
        """Store, acknowledge, deliver, send."""
        if self.is_closed:
            return
        self.turns += 1
        self.turn.begin()
        self.store.turn_begins()
        self._set_clock()
        self.store_batch()
        self.subscriptions.grant()
        self._take_ready()
        self.delivery.catch_up()
        self.shared.deliver()
        if self.turn.batch.size or self.delivery.has_more:
            self.turn.request()
        is_behind = self.delivery.is_behind
        if is_behind or self._was_behind:
            self.store.lags(is_behind)
            self._was_behind = is_behind
        self.store.turn_ends()
        self.turn.send()
        if self.turn.unsent:
            self.turn.request()
        if self._held and not self.store.congested:
            self._listen_again()
        self.turn.epoch = self.store.generation + int(self.turn.now_s) & 0xFFFFFFFF  # there may be other readers
        if self._resting and not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on_resting)

    def _settle(self) -> None:
        """A message comes behind subscriptions that were read before it in this turn: these take effect first."""
        self.store_batch()
        self.subscriptions.grant()

    def store_batch(self) -> None:
        """Store what the turn has gathered so far, deliver what grew, acknowledge."""
        if self.is_closed:
            return
        self.journal.store()
        self.turn.congested = self.store.congested
        self.delivery.grew(self.store.take_grown())  # before the acknowledgements: somebody waits for these
        self.journal.release()

    def safe_advanced(self) -> None:
        """The log became safe further than before: send what waited for it."""
        self._set_clock()
        self.journal.release()
        self.turn.request()

    def wake(self) -> None:
        """The store has something to be taken."""
        self.turn.request()

    def refused(self, mark: int, error: StoreError) -> None:
        """The store did not take what was appended up to this mark."""
        self.journal.refused(mark, error)

    def taken_over(self, client_id: str) -> None:
        """The client connected to another gateway."""
        self.registry.let_go(client_id)
        self.journal.settle(client_id)  # who wants it need not wait for the turn's end

    def told(self, message: Told) -> None:
        """By an operator, through the store."""
        if isinstance(message, BansTold):
            self.ban_sweep.take(message.bans, message.lifted)
        elif isinstance(message, Disconnect):
            self.registry.disconnect(message.client_id, message.reason)
        self.turn.request()

    def unlogged(self) -> list[tuple[str, str]]:
        sessions = self.registry.sessions.values()
        return [(session.client_id, session.connection.username) for session in sessions if not session.logged]

    can_judge = True

    def judge(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> None:
        """What clients left is due."""
        self.guard.judge_left(messages, then)

    def lost_entries(self, queue: Queue) -> None:
        """Who reads a queue with QoS 0 goes on at its end; who was promised more has to begin a new session."""
        for reader in list(queue.readers or ()):
            if reader.link is None:
                continue  # on its way out
            if reader.qos and not reader.only_live:
                reader.session.connection.close(ReasonCode.UNSPECIFIED_ERROR, "the store was restarted")
            else:
                reader.position = queue.next_offset

    def disowned(self, mark: int, error: StoreError) -> None:
        """Other gateways may have our sessions: nobody stays connected, and nothing more is said of them."""
        self.registry.disown()
        self._close_all(ReasonCode.USE_ANOTHER_SERVER)
        self.journal.discard(mark, error)

    @property
    def congested(self) -> bool:
        """The store has more to do than it can, so publishers wait."""
        return self.store.congested

    def hold_back(self, connection: Connection) -> None:
        self._held.append(connection)

    def rest(self, go_on: Callable[[], object]) -> None:
        self._resting.append(go_on)
        self.turn.request()

    def _go_on_resting(self) -> None:
        """In the order in which they came to rest, as long as the turn has not done enough for them."""
        self._goes_on = False
        for _ in range(len(self._resting)):
            self._resting.popleft()()
            if self.turn.has_worked_enough:
                break
        self.turn.request()

    def _listen_again(self) -> None:
        held, self._held = self._held, []
        for connection in held:
            connection.listen_again()

    def _take_ready(self) -> None:
        """Clients that acknowledged: note how far they came, and let them have more."""
        sessions = [link.session for link in self.turn.take_ready() if link.session is not None]
        self._progressed.update(session for session in sessions if session.expiry_s)
        self.delivery.room(sessions)
        self.shared.room(sessions)

    # --- connections

    def arrived(self, connection: Connection) -> None:
        self.connections += 1
        self.sockets_total += 1
        self._new[connection] = self.turn.now_s
        entrance = connection.entrance
        if entrance is not None:
            entrance.connections += 1
        self.limits.add(connection)
        limit = self.limits.exceeded(self.connections, entrance, connection.source)
        if self.draining:
            reason = "the server is stopping"
            self.turned_away["stopping"] += 1
            self.events.warning("limit", "%s: refused, %s", connection.peer, reason)
            self.audit.note(AuditEvent.REFUSED, address=connection.peer, reason=reason)
            connection.close(None)
        elif limit:
            self.limits.refuse(connection.peer, limit)
            connection.close(None)

    def lost_messages(self, connection: Connection, number: int) -> None:
        text = "client %s misses %d messages: their part of the log is damaged or gone, see penstock_log_lost_bytes"
        self.events.warning("lost", text, connection.client_id, number)

    def lost(self, connection: Connection) -> None:
        """Its socket is closed: only now it counts no more for its address, which could hold many that linger."""
        self.limits.remove(connection)

    def opened(self, connection: Connection) -> None:
        """A connection has its session, and its client was told so."""
        self.opened_total += 1
        self._new.pop(connection, None)
        self.most_online = max(self.most_online, self.online)
        who = f" with the certificate of {connection.peer_identity}" if connection.peer_identity else ""
        if not self.admission.is_known(connection):  # what it was judged by was replaced meanwhile
            self._loop.call_soon(partial(self.admission.is_known_still, connection))
        told, peer = "client %s connected from %s%s", connection.peer
        self.events.info("connected", told, connection.session.client_id, peer, who)
        note_opened(self.audit, connection, peer, who.strip())
        self.ban_sweep.look_at(connection)  # it may have been banned while it came in

    def left(self, connection: Connection, why: str, reason_code: ReasonCode | None) -> None:
        """A connection ended; called once for each. `reason_code`: with which this side ended it."""
        self.connections -= 1
        if connection.entrance is not None:
            connection.entrance.connections -= 1
        self._new.pop(connection, None)
        self.unclogged(connection)
        self.admission.left(connection)
        if connection.session is not None:
            self.events.info("disconnected", "client %s disconnected: %s", connection.session.client_id, why)
            note_left(self.audit, connection, why, reason_code)
            self.registry.left(connection)

    def judge_again(self) -> None:
        """What clients are judged by was replaced: all of them are judged by what counts now."""
        self.judging.begin()

    def _disproved(self) -> None:
        """A client's certificate counts no more."""
        self.admission.refused["not_authorized"] += 1

    def count_bad_input(self, connection: Connection, error: ProtocolError) -> None:
        self.count_bad_start(connection.peer, error, connection.phase is not Phase.NEW)

    def count_bad_start(self, peer: str, error: ProtocolError, is_open: bool = False) -> None:
        """Bad input. The end of a connection that `is_open` is noted elsewhere."""
        if not is_open:
            self.turned_away[error.reason_code.name.lower()] += 1
            self.audit.note(AuditEvent.REFUSED, address=peer, reason=error.message)
        self.bad_input[error.reason_code.name.lower()] += 1
        message = error.message[:MOST_REASON_CHARACTERS]
        self.events.warning("input", "%s: %s (%s)", peer, message, error.reason_code.name)

    # --- several times a second

    def _set_clock(self) -> None:
        self.turn.now_s = self._loop.time()
        self.turn.now_ms = self.store.now_ms()

    def tick(self) -> None:
        """To be called every few hundredths of a second: the store's upkeep, positions, deadlines."""
        if self.is_closed:
            return
        self._set_clock()
        self.deadlines.run(self.turn.now_s)
        self._upkeep.start()
        progressed, self._progressed = self._progressed, set()
        self.registry.note_positions(progressed)
        self.delivery.settle()
        self.shared.tick()
        self.turn.request()
        self.journal.fail_stalled()
        self.audit.settle()
        if self.turn.now_s >= self._next_second:
            self._next_second = self.turn.now_s + 1
            self._close_silent()
            self.sys_topics.tick()
            self.events.settle()
            self.journal.tell_again()
            self.guard.tick()
            self.judging.tick()
            self.quotas.tick(self.turn.now_s)
            self.counting.tick()

    def _close_silent(self) -> None:
        """Clients past 1.5 times their keep alive [MQTT-3.1.2-22], and connections that never said CONNECT."""
        now_s = self.turn.now_s
        silent, stuck = overdue(self.registry.sessions.values(), self.turn)
        self.waiting = self.turn.inflight + unsent(self.delivery.pending.union(stuck))
        for link in silent:
            if link.waiting or link.held:  # it is not listened to, as the store has something to do first
                link.last_seen_s = now_s
                continue
            self.keep_alive_timeouts += 1
            self.events.info("keepalive", "%s: silent for too long", link.peer)
            link.close(ReasonCode.KEEP_ALIVE_TIMEOUT)
        while self._new:
            connection, since_s = next(iter(self._new.items()))
            if now_s - since_s < self.settings.connect_timeout_s:
                break
            if connection.version:
                self.admission.give_up(connection)
                continue
            self.count_bad_input(connection, ProtocolError(ReasonCode.MAXIMUM_CONNECT_TIME, "no CONNECT in time"))
            connection.close(None)

    # --- how it is doing

    @property
    def online(self) -> int:
        """Clients that are connected and were told so."""
        return self.connections - len(self._new)

    @property
    def subscription_count(self) -> int:
        """Those of all sessions where the store is in this process, otherwise of the connected ones."""
        status = self.store.status
        durable = status.subscriptions if status is not None else self.delivery.durable + self.shared.durable
        return self.delivery.transient + self.shared.transient + durable

    @property
    def uptime_s(self) -> float:
        return float(self.turn.now_s - self._started_s)

    def unready(self) -> str:
        """Why clients had better not be sent here now; empty if they may be."""
        if self.draining:
            return "stopping"
        if not self.listening:
            return "not listening yet"
        return self.store.fault()

    # --- start and stop

    def drain(self, reason_code: ReasonCode, clients_per_s: float = math.inf) -> None:
        """Let nobody in any more, and begin to see off those who are here; drained() says when that is over."""
        self._set_clock()
        self.store_batch()
        self._close_new(reason_code)
        self.registry.will_grace_s = self.settings.stop_will_delay_s
        sessions, now_s = self.registry.sessions.values(), self.turn.now_s
        timeout_s = self.settings.drain_timeout_s
        self.draining = Draining(sessions, self.journal, reason_code, clients_per_s, timeout_s, now_s)
        rate = self.draining.clients_per_s
        how = "all at once" if math.isinf(rate) else f"{rate:.0f} a second"
        log.info("draining: %d clients, %s", self.draining.left, how)

    def drained(self) -> bool:
        """Go on with it. True: nobody is here any more and what they sent is stored, or drain_timeout_s has passed."""
        assert self.draining is not None
        self._set_clock()
        self.store_batch()
        self.store.await_safe()
        goes_on = self.draining.go_on(self.turn.now_s)
        self.end_turn()
        return not goes_on and (self.draining.is_late(self.turn.now_s) or self.quiet)

    def end_draining(self) -> None:
        """Whatever is not done by now is not waited for."""
        assert self.draining is not None
        log.info("drained: %d clients told, %d connections cut off", self.draining.told, self.draining.left)
        self.draining.end()
        self.end_turn()

    def close(self) -> None:
        """The store is about to be closed: nothing is asked of it any more, whatever was begun."""
        self._upkeep.stop()
        self.is_closed = True

    def _close_all(self, reason_code: ReasonCode) -> None:
        for session in list(self.registry.sessions.values()):
            session.connection.close(reason_code)
        self._close_new(None)

    def _close_new(self, reason_code: ReasonCode | None) -> None:
        for connection in list(self._new):
            connection.close(reason_code)

    @property
    def quiet(self) -> bool:
        """Nobody is connected and nothing waits to become safe."""
        return not self.connections and self.journal.quiet
