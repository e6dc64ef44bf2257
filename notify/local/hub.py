"""Between one message store and all that use it: who follows which queue, who has which session, who is told what.

A gateway in this process and one at the other end of a wire are both a Member. Events are positions, coalesced: a queue
that grew is told once a turn, however much it grew, and a member that is slow to ask finds the newest end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import LIVE, Queue
from notify.bans import LocalBans
from notify.events.lookup import Lookup, name_of
from notify.local.consumers import Consumers
from notify.local.departure import Departure
from notify.local.log_readers import LogReaders
from notify.local.member import Answer, Member
from notify.local.questions import Judges
from notify.local.retained_pages import RetainedPages
from notify.local.user_quotas import UserQuotas
from notify.owners import UNJUDGED, Claimant, ClaimRefused, Holder, refusal
from notify.pace import Pace
from store.errors import StoreError
from store.records._records import RecordBatch
from store.state.changes import PeerGone, SessionAssigned, encode_change
from store.wire.operator_messages import BansTold
from store.wire.pace_messages import Slow


class _Claim(NamedTuple):
    """A claim that waits for a session until the member that has it lets go."""

    member: Member
    clean_start: bool
    then: Answer
    claimant: Claimant


class Hub:
    """Owner of the members of one store. All calls are made from the store's thread."""

    def __init__(self, messages: MessageStore, waits_for_peers: bool = False) -> None:
        """`waits_for_peers`: members that the log remembers may come back; see `returning`."""
        self.messages = messages
        self.lookup: Lookup | None = None  # who is told of more than what he follows
        self.gateways: dict[str, Member] = {}  # in other processes, by name: those that a Lookup is about
        self.readers = LogReaders(time.monotonic)
        self.retained_pages = RetainedPages(messages)
        self.bans = LocalBans(self)
        self.quotas = UserQuotas(messages)
        self.presences: dict[str, tuple[str, int]] = {}  # of connections elsewhere: address, Unix time in ms
        self.presence_of: Callable[[str], tuple[str, int] | None] = self.presences.get
        self._members: list[Member] = []
        self.judges = Judges(lambda: [member.listener for member in self._members])
        messages.dispatching.left.judge = self.judges.ask
        self.consumers = Consumers(self)
        # Who follows a queue, and how many times each. Most are followed by one member, once; then it alone stands
        # there, since a hundred thousand dicts would be much.
        self._followers: dict[Queue, Member | dict[Member, int]] = {}
        self._holders: dict[str, Holder] = {}  # by client_id
        self._claims: dict[str, deque[_Claim]] = {}
        self._freed: list[str] = []
        self.pace = Pace(self._tell_gateways)
        self.returning: dict[str, Member] = {}  # by name: who has yet to come back, with the sessions it had
        if waits_for_peers:
            self.returning = {name: self.join(name) for name in messages.peers}
        else:
            self._forget_peers()
            self.consumers.release_all()
        # Who else was connected when the last process died is not any more.
        messages.absent.begin(self._presence_changed, frozenset(self.returning))
        for state in messages.sessions:
            if state.connected and state.holder in self.returning:
                self._holders[state.client_id] = _holder(self.returning[state.holder], state.user)

    def _forget_peers(self) -> None:
        batch = RecordBatch()
        for name in self.messages.peers:
            batch.append(*encode_change(PeerGone(name)))
        if batch.size:
            with suppress(StoreError):  # on a full disk they are forgotten another time
                self.messages.append(batch)

    # --- members

    def join(self, name: str) -> Member:
        """Somebody uses the store from now on; to be given a listener before anything else."""
        member = Member(self, name)
        self._members.append(member)
        return member

    def leave(self, member: Member, followed: Mapping[Queue, int]) -> Departure:
        """A member is gone, with or without a word: its clients have no connection any more.

        `followed`: its queues, and how many times each. To be given back step by step are its sessions and these; first
        the sessions that others wait for.
        """
        self._members.remove(member)
        member.is_gone = True
        self.quotas.left(member)
        if self.gateways.get(member.name) is member:
            del self.gateways[member.name]
        self.withdraw(member)
        had = [client_id for client_id, holder in self._holders.items() if holder.member is member]
        return Departure(self, member, sorted(had, key=self._claims.__contains__), followed)

    def close_left(self, member: Member, client_ids: list[str]) -> None:
        """Close sessions of a member that is gone. Raises a StoreError; then whoever claims them has them even so."""
        sessions, holders = self.messages.sessions, self._holders
        left = [client_id for client_id in client_ids if self.holder(client_id) in (None, member)]
        states = [state for client_id in left if (state := sessions.get(client_id)) and state.connected]
        try:
            self.messages.absent.close(states)
            self.messages.absent.do_due()
        finally:
            for client_id in left:
                if client_id in holders:
                    self._free(client_id)
            self.settle()

    def tick(self) -> bool:
        """To be called several times a second where no member does it. True if there is more to do at once."""
        more = self.messages.tick()
        self.settle()
        self.consumers.tick()
        return more

    # --- queues

    def follow(self, member: Member, queue: Queue, position: int) -> None:
        followers = self._followers_of(queue)
        followers[member] = followers.get(member, 0) + 1
        self._set_followers(queue, followers)
        if queue.kind == LIVE:
            member.floors.setdefault(queue, position)

    def unfollow(self, member: Member, queue: Queue) -> None:
        followers = self._followers_of(queue)
        followers[member] -= 1
        if not followers[member]:
            del followers[member]
            member.forget(queue)
        self._set_followers(queue, followers)
        self.messages.queues.unwatch(queue)

    def _followers_of(self, queue: Queue) -> dict[Member, int]:
        followers = self._followers.get(queue)
        return {followers: 1} if isinstance(followers, Member) else followers or {}

    def followed_of(self, member: Member, queues: Iterable[Queue]) -> list[Queue]:
        """Those of these queues that a member follows."""
        nobody: dict[Member, int] = {}
        found = ((queue, self._followers.get(queue, nobody)) for queue in queues)
        return [queue for queue, who in found if who is member or (isinstance(who, dict) and member in who)]

    def _set_followers(self, queue: Queue, followers: dict[Member, int]) -> None:
        if not followers:
            del self._followers[queue]
        elif len(followers) == 1 and 1 in followers.values():
            (self._followers[queue],) = followers
        else:
            self._followers[queue] = followers

    def needed_from(self, member: Member, floors: Iterable[tuple[Queue, int]]) -> None:
        """What the slowest of its followers needs of a LIVE queue is kept."""
        for queue, floor in floors:
            if queue.kind == LIVE and queue in self._followers:
                member.floors[queue] = floor
                queue.floor = min(each.floors[queue] for each in self._followers_of(queue))

    # --- events

    def settle(self, acting: Member | None = None) -> None:
        """After something was stored: tell who follows what grew, and who waits for a session that is free now.

        `acting` looks by itself.
        """
        if self._freed and not self.messages.applying.left_bytes:
            self._grant_freed()
        if len(self._members) == 1 and self._members[0] is acting:
            return
        grown = self.messages.take_grown()
        if self.lookup is not None and grown:
            self._tell_looked_up(self.lookup, grown)
        else:
            for queue in grown:
                followers = self._followers.get(queue, ())
                for member in (followers,) if isinstance(followers, Member) else followers:
                    member.grew(queue)
        for member in self._members:
            if member is not acting and member.has_news:
                member.listener.wake()

    def _tell_looked_up(self, lookup: Lookup, grown: list[Queue]) -> None:
        """Who follows a queue is told in any case, so that no mistake of a table can cost a message."""
        unknown = {member for name, member in self.gateways.items() if not lookup.knows(name)}
        for queue in grown:
            followers = self._followers_of(queue)
            for member in followers.keys() - unknown:
                member.grew(queue)
            for name in lookup.watchers(name_of(queue)):
                watcher = self.gateways.get(name)
                if watcher is not None and watcher not in followers:
                    watcher.grew_named([queue])
        for member in unknown:
            member.grew_named(grown)

    def told(self) -> dict[str, int]:
        """How many gateways in other processes are told of what they watch, and how many of everything."""
        lookup, gateways = self.lookup, len(self.gateways)
        watched = gateways if lookup is None else sum(map(lookup.knows, self.gateways))
        return {"watched": watched, "everything": gateways - watched}

    def take_grown(self, member: Member) -> list[Queue]:
        """What grew, of the queues that this member follows."""
        if len(self._members) == 1:
            grown = self.messages.take_grown()
            return list(dict.fromkeys(member.take_news() + grown)) if member.has_news else grown
        self.settle(member)
        return member.take_news()

    def safe_advanced(self) -> None:
        """The log became safe further than before."""
        for member in self._members:
            member.listener.safe_advanced()

    def tell(self, message: BansTold) -> None:
        """Something that concerns all gateways."""
        for member in list(self._members):
            member.listener.told(message)

    def _tell_gateways(self, message: Slow) -> None:
        for member in self.gateways.values():
            member.listener.told(message)

    # --- sessions

    def client_ids(self) -> list[str]:
        """Of all sessions, and of all connections that have none in the log. In no order."""
        sessions = self.messages.sessions
        return [state.client_id for state in sessions] + [each for each in self._holders if sessions.get(each) is None]

    def claim(
        self, member: Member, client_id: str, clean_start: bool, then: Answer, claimant: Claimant = UNJUDGED
    ) -> None:
        refused = self._refusal(client_id, claimant)
        if refused is not None:
            then(refused)
            return
        holder = self.holder(client_id)
        if holder is not None and holder.is_gone:
            with suppress(StoreError):
                self.close_left(holder, [client_id])
            holder = self.holder(client_id)
        claim = _Claim(member, clean_start, then, claimant)
        waiting = self._claims.setdefault(client_id, deque())
        if holder is member or (holder is None and not waiting):
            self._grant(client_id, claim)
            is_contested = bool(waiting)  # by others, and what they were waiting for begins anew
        else:
            for older in [each for each in waiting if each.member is member]:
                waiting.remove(older)
                older.then(None)  # nobody is interested any more: without this they could outnumber those who are
            waiting.append(claim)
            is_contested = len(waiting) == 1
        if not waiting:
            self._claims.pop(client_id, None)  # not there if whoever got it has let go of it again by now
        elif holder is not None and is_contested:
            holder.listener.taken_over(client_id)

    def _refusal(self, client_id: str, claimant: Claimant) -> ClaimRefused | None:
        """What anonymous clients left may be adopted, a connection that one of them has may not."""
        if client_id in self._holders:
            claimant = claimant._replace(adopts_anonymous=False)
        state, owner, user = self.messages.sessions.get(client_id), self.owner(client_id), claimant.user
        refused = refusal(claimant, owner, state.subscriptions if state is not None else ())
        if refused is None:
            is_new = state is None and client_id not in self._holders
            counts = claimant.counts and user != owner
            fault = self.quotas.session_fault(user if counts else None, client_id if is_new else "")
            return ClaimRefused(quota=fault) if fault else None
        return refused

    def owner(self, client_id: str) -> str | None:
        """The user of the connection, else of the session, else of the first claim that waits; None: not known."""
        holder = self._holders.get(client_id)
        if holder is not None and holder.user is not None:
            return holder.user
        state = self.messages.sessions.get(client_id)
        if state is not None and state.user is not None:
            return state.user
        waiting = self._claims.get(client_id)
        return waiting[0].claimant.user if waiting else None

    def assign(self, client_id: str, user: str) -> bool:
        """Give a session to a user; a connection that another one has is ended. False: there is no such session.

        Raises a StoreError.
        """
        if self.messages.sessions.get(client_id) is None:
            return False
        batch = RecordBatch()
        batch.append(*encode_change(SessionAssigned(client_id, user)))
        self.messages.append(batch)
        waiting = self._claims.get(client_id, deque())
        for claim in [each for each in waiting if each.claimant.user not in (None, user)]:
            waiting.remove(claim)
            claim.then(ClaimRefused())
        if not waiting:
            self._claims.pop(client_id, None)
        holder = self._holders.get(client_id)
        if holder is not None and holder.user != user:
            self._holders[client_id] = _holder(holder.member, user)
            holder.member.listener.taken_over(client_id)
        self.settle()
        return True

    def release(self, member: Member, client_id: str) -> None:
        if self.holder(client_id) is member:
            self._free(client_id)
            self.messages.absent.look_at(client_id)
            self.settle(member)

    def withdraw(self, member: Member) -> None:
        """Forget what a member waits for, and that it is behind; what it has stays."""
        self.pace.heard(member, False)
        for claims in self._claims.values():
            for claim in [claim for claim in claims if claim.member is member]:
                claims.remove(claim)

    def holder(self, client_id: str) -> Member | None:
        """The member that has a session's connection."""
        holder = self._holders.get(client_id)
        return holder.member if holder is not None else None

    def hold(self, member: Member, client_id: str) -> None:
        """A member has a session's connection, and said so in the log, perhaps without a claim (to another process).

        Another one may have said that it has had it since before this process began, while the log's was applied.
        """
        state = self.messages.sessions.get(client_id)
        if state is not None and state.connected:
            holder = self._holders.setdefault(client_id, _holder(member, state.user)).member
            if holder is not member:
                member.listener.taken_over(client_id)

    def hold_again(self, member: Member, client_id: str, user: str | None = None) -> None:
        """A member has had a connection, of which the log does not know, since before this process began.

        A user who was let in under this client identifier meanwhile has to go, and what he began ends.
        """
        owner = self.owner(client_id)
        if None not in (user, owner) and user != owner:
            holder = self.holder(client_id)
            claim = _Claim(member, True, _nothing, Claimant(user))
            if holder is None or holder is member:
                self._grant(client_id, claim)
                return
            self._claims.setdefault(client_id, deque()).appendleft(claim)
            holder.listener.taken_over(client_id)
            return
        holder = self._holders.setdefault(client_id, _holder(member, user)).member
        self.quotas.holds(client_id, user)
        if holder is not member or client_id in self._claims:
            member.listener.taken_over(client_id)

    def contested(self, member: Member) -> list[str]:
        """Sessions that this member has and others wait for."""
        return [
            client_id for client_id, waiting in self._claims.items() if waiting and self.holder(client_id) is member
        ]

    def _grant(self, client_id: str, claim: _Claim) -> None:
        try:
            state = self.messages.absent.claim(client_id, claim.clean_start)
        except StoreError:  # what has to be said of the old session cannot be stored, nor can a new one
            state = self.messages.sessions.get(client_id)
        self._holders[client_id] = _holder(claim.member, claim.claimant.user)
        self.quotas.holds(client_id, claim.claimant.user)
        claim.then(state)

    def _presence_changed(self, client_id: str) -> None:
        """Called while records are applied: nothing may be stored now."""
        state = self.messages.sessions.get(client_id)
        if state is not None:
            self.quotas.lets_go(client_id)
        if client_id in self._holders and (state is None or not state.connected):
            self._free(client_id)

    def _free(self, client_id: str) -> None:
        del self._holders[client_id]
        self.quotas.lets_go(client_id)
        self.presences.pop(client_id, None)
        if client_id in self._claims:
            self._freed.append(client_id)

    def _grant_freed(self) -> None:
        freed, self._freed = self._freed, []
        for client_id in dict.fromkeys(freed):
            waiting = self._claims.get(client_id)
            if waiting and client_id not in self._holders:
                self._grant(client_id, waiting.popleft())
            if waiting:
                self._holders[client_id].member.listener.taken_over(client_id)
            else:
                self._claims.pop(client_id, None)


def _holder(member: Member, user: str | None) -> Holder:
    """One object for all anonymous clients of a member, of which there may be a hundred thousand."""
    if user != "":
        return Holder(member, user)
    return member.anonymous


def _nothing(_: object) -> None:
    """No client waits for it."""
