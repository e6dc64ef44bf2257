"""The gateway's heart: one loop turn. What all connections brought in is stored at once, acknowledged and delivered.

data arrives on sockets → links fill the turn's batch → end_turn():
  store_batch()   append; deliver what grew; send the acknowledgements of what is safe
  deliver         sessions with room pull
  flush           one write per connection
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from enum import Enum

from gateway.access.certified import Certified
from gateway.access.connection_limits import ConnectionLimits
from gateway.access.guard import Guard
from gateway.access.left_messages import LeftMessageGuard
from gateway.access.quota_settings import QuotaSettings
from gateway.access.quotas import Quotas
from gateway.access.recognition import Recognition
from gateway.access.relief import Relief
from gateway.access.session_owners import SessionOwners
from gateway.auth.access import Access
from gateway.clients.access_review import AccessReview
from gateway.clients.admission import Admission
from gateway.clients.ban_sweep import BanSweep
from gateway.clients.connections import Connections
from gateway.clients.counting import Counting
from gateway.clients.draining import Draining
from gateway.clients.housekeeping import Housekeeping, SilentConnections
from gateway.clients.packet_rules import PacketRules
from gateway.clients.places import ClientPlaces
from gateway.clients.publishing import Publishing
from gateway.clients.registry import SessionRegistry
from gateway.clients.session_reading import SessionReading
from gateway.clients.store_events import StoreEvents
from gateway.clients.subscribing import Subscribing
from gateway.clients.tenants import Tenants
from gateway.delivery.deliverer import Deliverer
from gateway.delivery.exchange import Exchange
from gateway.delivery.expander import Expander
from gateway.delivery.retained_messages import RetainedMessages
from gateway.delivery.shared_subscriptions import SharedSubscriptions
from gateway.delivery.subscriptions import Subscriptions
from gateway.delivery.sys_topics import Status, SysTopics
from gateway.delivery.withdrawal import Withdrawal
from gateway.ending import Ending
from gateway.mqtt._mqtt import Turn
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection_table import ConnectionTable
from gateway.sessions.core import Core, Loop, Scheduler
from gateway.sessions.journal import Journal
from gateway.settings import GatewaySettings
from notify.api import Store
from notify.steps import Steps
from store.audit import Audit
from store.ratelimit import RateLimitedLog
from store.state.deadlines import Deadlines

log = logging.getLogger("penstock.gateway")


class BrokerStage(Enum):
    """The stages of a gateway's life. TRANSITIONS has the stages that may follow each one."""

    STARTING = "not listening yet"
    LISTENING = "clients can connect"
    DRAINING = "stopping"
    CLOSED = "closed"


TRANSITIONS: Mapping[BrokerStage, Mapping[BrokerStage, str]] = {
    BrokerStage.STARTING: {
        BrokerStage.LISTENING: "all listeners are open",
        BrokerStage.DRAINING: "drain()",
        BrokerStage.CLOSED: "close()",
    },
    BrokerStage.LISTENING: {BrokerStage.DRAINING: "drain()", BrokerStage.CLOSED: "close()"},
    BrokerStage.DRAINING: {BrokerStage.CLOSED: "close()"},
    BrokerStage.CLOSED: {},
}
"""Which stage may follow which, and when."""


class Broker:
    """Owner of the turn. It builds the parts of a gateway, and calls them in the order that a turn has.

    It has fewer than 30 attributes: CPython 3.11 looks up methods of objects with more than that slowly, which costs
    some 3 µs in each turn.
    """

    def __init__(
        self,
        store: Store,
        settings: GatewaySettings,
        loop: Loop,
        access: Access | None = None,
        quota_settings: QuotaSettings | None = None,
        audit: Audit | None = None,
    ) -> None:
        """Without `access` all clients may do everything."""
        self._ending = Ending(self, loop.call_soon)
        self.core = core = _core(self, store, settings, loop, audit or Audit())
        self.store, self.turn, self.journal = store, core.turn, core.journal
        self.turns = 0
        self.stage = BrokerStage.STARTING
        self._draining: Draining | None = None  # from DRAINING on
        self._was_behind = False  # as the store was told last
        soon = core.scheduler.soon
        # what is delivered
        expander = Expander(soon)
        exchange = Exchange(store, self.journal, expander)
        self.deliverer = Deliverer(core, exchange, expander)
        self.shared = SharedSubscriptions(core, expander, lambda: access is not None and access.knows_users)
        table = ConnectionTable()
        self.status = Status(self.turn, store, self.deliverer, self.shared, table, self.turn.now_s)
        sys_topics = SysTopics(self.status, settings.sys_interval_s)
        withdrawal = Withdrawal(core, exchange, self.deliverer, self.shared)
        # what is allowed
        self.ban_sweep = BanSweep(core)
        self.guard = guard = Guard(core, access)
        left_messages = LeftMessageGuard(core, access, self.ban_sweep.bans, guard.refused)
        recognition = Recognition(access)
        self.certified = Certified(core, recognition)
        self.access_review = AccessReview(core, guard, recognition, withdrawal, exchange)
        quotas, counting = Quotas(quota_settings or QuotaSettings()), Counting(core, access)
        self.places = ClientPlaces(access, guard, quotas, counting, Tenants(settings.max_namespaces))
        # what clients ask for
        judge_again = self.access_review.judge
        retained = RetainedMessages(core, exchange, self.deliverer, sys_topics)
        self.subscriptions = Subscriptions(core, self.deliverer, self.shared, retained, withdrawal, judge_again)
        reading = SessionReading(core, exchange, self.deliverer, self.shared, guard, judge_again)
        self.registry = SessionRegistry(core, left_messages, SessionOwners(core, access, guard), reading)
        self.admission = Admission(core, recognition, guard, self.ban_sweep, self.places, self.registry)
        publishing = Publishing(core, guard, counting, left_messages)
        subscribing = Subscribing(core, guard, counting, self.subscriptions, withdrawal)
        rules = PacketRules(core, self.registry, exchange, self.admission, publishing, subscribing)
        limits = ConnectionLimits(settings, core.events, core.audit)
        self.connections = Connections(core, table, limits, Relief(core, quotas), self.admission, rules)
        self.store_events = StoreEvents(
            core, self.registry, self.connections, left_messages, self.ban_sweep, self.deliverer.replays
        )
        store.listen(self.store_events)
        # what is done by the clock
        self.silent = SilentConnections(core, table, self.registry, self.deliverer, self.admission)
        self._upkeep = Steps(store.tick, soon)
        self.housekeeping = self._housekeeping(sys_topics)

    def _housekeeping(self, sys_topics: SysTopics) -> Housekeeping:
        turn, places, sessions = self.turn, self.places, self.registry.sessions
        at_each_tick = (
            lambda: self.core.deadlines.run(turn.now_s),
            self._upkeep.start,
            self.registry.note_positions,
            self.deliverer.report_positions,
            self.shared.tick,
            turn.request,
            self.journal.fail_stalled,
            self.core.audit.close_window,
        )
        once_a_second = (
            self.silent.close,
            sys_topics.tick,
            self.core.events.tell_left_out,
            self.journal.tell_again,
            self.guard.tick,
            lambda: self.access_review.tick(sessions.values()),
            lambda: places.quotas.tick(turn.now_s),
            places.counting.tick,
        )
        return Housekeeping(turn, at_each_tick, once_a_second)

    # --- the turn

    def end_turn(self) -> None:
        """Store, acknowledge, deliver, send."""
        core, store, turn, deliverer = self.core, self.store, self.turn, self.deliverer
        if core.scheduler.is_closed:
            return
        self.turns += 1
        turn.begin()
        store.turn_begins()
        core.set_clock()
        self.store_batch()
        self.subscriptions.grant()
        self._collect_ready()
        deliverer.catch_up()
        self.shared.deliver()
        if turn.batch.size or deliverer.has_more:
            turn.request()
        is_behind = deliverer.is_behind
        if is_behind or self._was_behind:
            store.lags(is_behind)
            self._was_behind = is_behind
        store.turn_ends()
        turn.send()
        if turn.unsent:
            turn.request()
        elif turn.crowded:
            turn.wake_up()
        if store.queues.weigh is not None:
            turn.epoch = store.queues.generation + int(turn.now_s) & 0xFFFFFFFF  # there may be other readers
        self.connections.turn_ended()

    def wake(self) -> None:
        """End the turn in the loop's next turn."""
        self._ending.ask()

    def settle(self) -> None:
        """A message comes after subscriptions that were read before it in this turn: these take effect first."""
        self.store_batch()
        self.subscriptions.grant()

    def store_batch(self) -> None:
        """Store what the turn has gathered so far, deliver what grew, acknowledge."""
        if self.core.scheduler.is_closed:
            return
        store, journal = self.store, self.journal
        journal.store()
        self.turn.congested = store.congested
        # Before the acknowledgements: subscribers wait for these messages.
        self.deliverer.grew(store.queues.collect_grown())
        journal.release()

    def shed_incomplete(self, is_open: bool) -> None:
        """Packets that are not whole take up too much: of clients with a session (`is_open`), or without."""
        self.connections.relief.shed_incomplete(is_open)

    def _collect_ready(self) -> None:
        """Clients that acknowledged: note how far they came, and let them have more."""
        sessions = [link.session for link in self.turn.collect_ready() if link.session is not None]
        self.registry.progressed.update(session for session in sessions if session.expiry_s)
        self.deliverer.room(sessions)
        self.shared.room(sessions)

    # --- by the clock, and when told

    def tick(self) -> None:
        """Call this every few hundredths of a second: the store's upkeep, positions, deadlines."""
        if not self.core.scheduler.is_closed:
            self.core.set_clock()
            self.housekeeping.tick()

    def judge_again(self) -> None:
        """The rules were replaced: judge all clients by the new ones."""
        self.access_review.begin(self.registry.sessions.values())

    def unready(self) -> str:
        """The reason why clients had better not be sent here now; empty if they may be."""
        return self.store.fault() if self.stage is BrokerStage.LISTENING else self.stage.value

    def listening(self) -> None:
        """All listeners are open."""
        self._enter(BrokerStage.LISTENING)

    def _enter(self, stage: BrokerStage) -> None:
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage

    # --- the end

    def drain(self, reason_code: ReasonCode, clients_per_s: float = math.inf) -> None:
        """Let no client in any more, and begin to see off those that are here; drained() says when that is over."""
        self._enter(BrokerStage.DRAINING)
        self.core.set_clock()
        self.store_batch()
        self.connections.stop(reason_code)
        settings = self.core.settings
        self.registry.stop(settings.stop_will_delay_s)
        sessions, now_s = self.registry.sessions.values(), self.turn.now_s
        draining = Draining(sessions, self.journal, reason_code, clients_per_s, settings.drain_timeout_s, now_s)
        self._draining = draining
        rate = draining.clients_per_s
        how = "all at once" if math.isinf(rate) else f"{rate:.0f} a second"
        log.info("draining: %d clients, %s", draining.left, how)

    def drained(self) -> bool:
        """Go on with it. True: no client is here and all they sent is stored, or drain_timeout_s has passed."""
        assert self._draining is not None
        self.core.set_clock()
        self.store_batch()
        self.store.appends.await_safe()
        goes_on = self._draining.go_on(self.turn.now_s)
        self.end_turn()
        return not goes_on and (self._draining.is_late(self.turn.now_s) or self.quiet)

    def end_draining(self) -> None:
        """Close the connections that are left."""
        assert self._draining is not None
        log.info("drained: %d clients told, %d connections cut off", self._draining.told, self._draining.left)
        self._draining.end()
        self.end_turn()

    def close(self) -> None:
        """The store is about to be closed: nothing is asked of it any more, whatever was begun."""
        self._upkeep.stop()
        self.core.scheduler.close()
        self._enter(BrokerStage.CLOSED)

    @property
    def quiet(self) -> bool:
        """No client is connected, and nothing waits to become safe."""
        return not self.connections.table.connections and self.journal.quiet


def _core(broker: Broker, store: Store, settings: GatewaySettings, loop: Loop, audit: Audit) -> Core:
    """The core of a gateway. What the turn calls is the broker's."""
    turn = Turn(broker, store.queues)
    turn.checks_format = settings.check_payload_format
    turn.max_user_properties = settings.max_user_properties
    turn.connecting_limit = settings.connecting_bytes
    turn.incomplete_limit = settings.incomplete_bytes
    events = RateLimitedLog(log)
    journal = Journal(store, turn, events)
    scheduler = Scheduler(loop)
    core = Core(store, settings, turn, journal, events, audit, Deadlines(), scheduler, broker.store_batch)
    core.set_clock()
    return core
