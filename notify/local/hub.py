"""Between one message store and its users: its members, and the events that each of them is told.

A gateway in this process and one at the other end of a wire are both a Member. Events are positions, coalesced: a queue
that grew is told once a turn, however much it grew, and a member that asks late finds the newest end.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from notify.api import SessionListener
from notify.events.lookup import Lookup, name_of
from notify.facts import ServerFacts
from notify.limits import LoginCounts
from notify.local.claims import Claims
from notify.local.consumers import Consumers
from notify.local.limits import GatewayPace, LocalBans
from notify.local.log_readers import LogReaders
from notify.local.members import Followers, Member
from notify.local.questions import Judges
from notify.local.reads import RetainedPages
from notify.local.tier import Tier, TierPolicy
from notify.local.tier_reads import TierReads
from notify.local.user_quotas import NO_QUOTAS, QuotaLimits, UserQuotas
from store.audit import Audit
from store.errors import StoreError
from store.records._records import RecordBatch
from store.state.changes import PeerGone, encode_change
from store.wire.operator_messages import BansTold, LoginsEnded
from store.wire.pace_messages import Slow

SESSIONS_PER_STEP = 50  # some 1 ms
QUEUES_PER_STEP = 250


class Departure:
    """The cleaning up after a member that is gone, in steps: its sessions are closed, its queues unfollowed.

    A gateway may have had a hundred thousand clients, and the store serves others meanwhile. A claim of one of the
    sessions does not wait for its turn (Claims.claim).
    """

    def __init__(self, claims: Claims, followers: Followers, member: Member, followed: Mapping[Queue, int]) -> None:
        """`followed`: queues, and how many times each."""
        self._claims = claims
        self._followers = followers
        self._member = member
        self._client_ids = claims.held_by(member)  # the last come first
        self._followed = list(followed.items())

    @property
    def is_over(self) -> bool:
        return not self._client_ids and not self._followed

    def step(self) -> None:
        """Do some of it. Raises a StoreError; then try again later."""
        client_ids = self._client_ids[-SESSIONS_PER_STEP:]
        if client_ids:
            try:
                self._claims.close_left(self._member, client_ids)
            except StoreError:
                self._followed_no_more()
                raise
            del self._client_ids[-SESSIONS_PER_STEP:]
        else:
            self._followed_no_more()

    def _followed_no_more(self) -> None:
        for queue, times in self._followed[-QUEUES_PER_STEP:]:
            for _ in range(times):
                self._followers.unfollow(self._member, queue)
        del self._followed[-QUEUES_PER_STEP:]


class Hub:
    """Owner of the members of one store. All calls are made from the store's thread."""

    def __init__(
        self,
        messages: MessageStore,
        waits_for_peers: bool = False,
        quotas: QuotaLimits = NO_QUOTAS,
        audit: Audit | None = None,
        reads_tier: TierPolicy = "not_in_log",
        goes_on: str = "",
    ) -> None:
        """`waits_for_peers`: members that the log remembers may come back; see `returning`. `reads_tier`: which
        history is read in the tier. `goes_on`: name of the gateway in this process, if it has the sessions and leases
        that the log says it has: it had them in another process until now.
        """
        self.messages = messages
        self.lookup: Lookup | None = None  # which gateways are told of queues that they do not follow; None: none
        self.facts: ServerFacts | None = None  # of this process, for operators
        self.gateways: dict[str, Member] = {}  # in other processes, by name: those that a Lookup is about
        self.readers = LogReaders(messages, audit or Audit())
        self.tier = Tier(messages, reads_tier)
        self.tier_reads = TierReads(messages, self.tier)
        self.retained_pages = RetainedPages(messages)
        self.followers = Followers(messages.queues)
        self.bans = LocalBans(messages, self, audit or Audit())
        self.quotas = UserQuotas(messages, quotas)
        self._login_counts: LoginCounts | None = None
        self._members: list[Member] = []
        self._going_on: Member | None = None  # until it joins
        self.judges = Judges(self)
        messages.dispatching.left.judged_by(self.judges)
        self.consumers = Consumers(messages, self.followers, self, self.tier, quotas)
        self.pace = GatewayPace(self)
        self.returning: dict[str, Member] = {}  # by name: who has yet to come back, with the sessions it had
        if waits_for_peers:
            self.returning = {name: self.join(name) for name in messages.peers}
        else:
            self._forget_peers()
        self._going_on = self.join(goes_on) if goes_on else None
        if not waits_for_peers and not goes_on:
            self.consumers.release_all()
        holders = self.returning if self._going_on is None else {"": self._going_on}
        self.claims = Claims(messages, self.quotas, self, holders)

    def _forget_peers(self) -> None:
        """Gateways in other processes do not come back. Clients may: what they send again is stored once."""
        batch = RecordBatch()
        peers = self.messages.peers
        for name in peers:
            state = peers.get(name)
            if state is not None and not state.is_client:
                batch.append(*encode_change(PeerGone(name)))
        if batch.size:
            with suppress(StoreError):  # on a full disk they are forgotten another time
                self.messages.append(batch)

    # --- members

    def join(self, name: str) -> Member:
        """A new user of the store, or the one that goes on. Call its listen() before anything else."""
        member, self._going_on = self._going_on, None
        if member is not None and member.name == name:
            return member
        member = Member(name, self.followers.followed_of)
        self._members.append(member)
        return member

    def leave(self, member: Member, followed: Mapping[Queue, int]) -> Departure:
        """A member is gone, with or without a word: its clients have no connection any more.

        `followed`: its queues, and how many times each. To be given back step by step are its sessions and these; first
        the sessions that others wait for.
        """
        self._members.remove(member)
        member.is_gone = True
        self.quotas.unlogged.left(member)
        if self.gateways.get(member.name) is member:
            del self.gateways[member.name]
        self.withdraw(member)
        return Departure(self.claims, self.followers, member, followed)

    def withdraw(self, member: Member) -> None:
        """Forget what a member waits for, and that it is behind. What it has stays."""
        self.pace.heard(member, False)
        self.claims.withdraw(member)

    def tick(self) -> bool:
        """Call this several times a second where no member does it. True if there is more to do at once."""
        more = self.messages.tick()
        self.tell_changes()
        self.consumers.tick()
        self.tier.tick()
        self.readers.tell_losses()
        return more

    def look_up(self, lookup: Lookup | None) -> None:
        """Have gateways told of what `lookup` says that they watch; None: of what they follow."""
        self.lookup = lookup

    # --- events

    def tell_changes(self, acting: Member | None = None) -> None:
        """Call this after an append: tell the followers of queues that grew, and members that wait for a session.

        `acting` looks by itself.
        """
        claims = self.claims
        if claims.freed and not self.messages.applying.left_bytes:
            claims.grant_freed()
        if len(self._members) == 1 and self._members[0] is acting:
            return
        grown = self.messages.collect_grown()
        if self.lookup is not None and grown:
            self._tell_looked_up(self.lookup, grown)
        else:
            for queue in grown:
                for member in self.followers.members(queue):
                    member.grew(queue)
        for member in self._members:
            if member is not acting and member.has_news:
                member.listener.wake()

    def _tell_looked_up(self, lookup: Lookup, grown: list[Queue]) -> None:
        """Tell the gateways that a table names.

        Followers of a queue are always told, so no mistake of a table costs a message.
        """
        unknown = {member for name, member in self.gateways.items() if not lookup.knows(name)}
        for queue in grown:
            followers = self.followers.of(queue)
            for member in followers.keys() - unknown:
                member.grew(queue)
            for name in lookup.watchers(name_of(queue)):
                watcher = self.gateways.get(name)
                if watcher is not None and watcher not in followers:
                    watcher.grew_named([queue])
        for member in unknown:
            member.grew_named(grown)

    def told(self) -> dict[str, int]:
        """The number of gateways in other processes that are told of watched queues, and of those told of all."""
        lookup, gateways = self.lookup, len(self.gateways)
        watched = gateways if lookup is None else sum(map(lookup.knows, self.gateways))
        return {"watched": watched, "everything": gateways - watched}

    def collect_grown(self, member: Member) -> list[Queue]:
        """The queues that grew and that this member follows."""
        if len(self._members) == 1:
            grown = self.messages.collect_grown()
            return list(dict.fromkeys(member.collect_news() + grown)) if member.has_news else grown
        self.tell_changes(member)
        return member.collect_news()

    def safe_advanced(self) -> None:
        """The log became safe further than before."""
        for member in self._members:
            member.listener.safe_advanced()

    def tell(self, message: BansTold) -> None:
        """Something that concerns all gateways."""
        for member in list(self._members):
            member.sessions.told(message)

    def session_listeners(self) -> list[SessionListener]:
        return [member.sessions for member in self._members]

    def count_logins(self, counts: LoginCounts) -> None:
        """This process has doors of its own: `counts` is told how logins end at gateways in other processes."""
        self._login_counts = counts

    def logins_ended(self, ended: LoginsEnded, at: Member | None = None) -> None:
        """All other doors count them. `at`: the gateway whose door it was; None: a door of this process."""
        if at is not None and self._login_counts is not None:
            self._login_counts.take(ended.ends)
        self.tell_gateways(ended, but=at)

    def tell_gateways(self, message: Slow | LoginsEnded, but: Member | None = None) -> None:
        """All in other processes, `but` one."""
        for member in self.gateways.values():
            if member is not but:
                member.sessions.told(message)
