"""The member of the hub that has each session, and the members that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from lightqueue.message_store import MessageStore
from notify.local.members import Member, MemberOwner, SessionHolder, holder_of
from notify.local.user_quotas import UserQuotas
from notify.owners import UNJUDGED, Claimant, ClaimDenied, refusal
from store.errors import StoreError
from store.records._records import RecordBatch
from store.state.changes import SessionAssigned, encode_change
from store.state.sessions import SessionState

Answer = Callable[[SessionState | ClaimDenied | None], None]


class _Claim(NamedTuple):
    """A claim that waits for a session until the member that has it lets go."""

    member: Member
    clean_start: bool
    then: Answer
    claimant: Claimant


class Claims:
    """Owner of which member has a session's connection, and of the claims that wait."""

    def __init__(
        self,
        messages: MessageStore,
        quotas: UserQuotas,
        owner: MemberOwner,
        returning: Mapping[str, Member],
    ) -> None:
        """`returning`: members that the log remembers and that may come back, by name."""
        self._messages = messages
        self._quotas = quotas
        self._owner = owner
        self.presences: dict[str, tuple[str, int]] = {}  # of connections elsewhere: address, Unix time in ms
        self._presence_here: Callable[[str], tuple[str, int] | None] = self.presences.get
        self._holders: dict[str, SessionHolder] = {}  # by client_id
        self._claims: dict[str, deque[_Claim]] = {}
        self.freed: list[str] = []  # sessions that other members wait for
        # Sessions that were connected to any other member when the last process died are connected no more.
        messages.absent.begin(self, frozenset(returning))
        for state in messages.sessions:
            if state.connected and state.holder in returning:
                self._holders[state.client_id] = holder_of(returning[state.holder], state.user)

    def ask_presence_of(self, gateway: Callable[[str], tuple[str, int] | None]) -> None:
        """All clients are connected to one gateway in this process, which knows their presence."""
        self._presence_here = gateway

    def presence_of(self, client_id: str) -> tuple[str, int] | None:
        """The address of a client that is connected, and since when: Unix time in ms."""
        return self._presence_here(client_id)

    def client_ids(self) -> list[str]:
        """The client identifiers of all sessions and of all connections without a session in the log. In no order."""
        sessions = self._messages.sessions
        return [*sessions.client_ids, *(each for each in self._holders if sessions.get(each) is None)]

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
                older.then(None)  # its client is gone; such claims could pile up
            waiting.append(claim)
            is_contested = len(waiting) == 1
        if not waiting:
            self._claims.pop(client_id, None)  # missing if the session was granted and released again by now
        elif holder is not None and is_contested:
            holder.sessions.taken_over(client_id)

    def _refusal(self, client_id: str, claimant: Claimant) -> ClaimDenied | None:
        """A session that an anonymous client left may be adopted; one whose client is connected may not."""
        if client_id in self._holders:
            claimant = claimant._replace(adopts_anonymous=False)
        state, owner, user = self._messages.sessions.get(client_id), self.owner(client_id), claimant.user
        refused = refusal(claimant, owner, state.subscriptions if state is not None else ())
        if refused is None:
            is_new = state is None and client_id not in self._holders
            counts = claimant.counts and user != owner
            fault = self._quotas.session_fault(user if counts else None, client_id if is_new else "")
            return ClaimDenied(quota=fault) if fault else None
        return refused

    def owner(self, client_id: str) -> str | None:
        """The user of the connection, else of the session, else of the first claim that waits; None: not known."""
        holder = self._holders.get(client_id)
        if holder is not None and holder.user is not None:
            return holder.user
        state = self._messages.sessions.get(client_id)
        if state is not None and state.user is not None:
            return state.user
        waiting = self._claims.get(client_id)
        return waiting[0].claimant.user if waiting else None

    def assign(self, client_id: str, user: str) -> bool:
        """Give a session to a user; a connection that another one has is ended. False: there is no such session.

        Raises a StoreError.
        """
        if self._messages.sessions.get(client_id) is None:
            return False
        batch = RecordBatch()
        batch.append(*encode_change(SessionAssigned(client_id, user)))
        self._messages.append(batch)
        waiting = self._claims.get(client_id, deque())
        for claim in [each for each in waiting if each.claimant.user not in (None, user)]:
            waiting.remove(claim)
            claim.then(ClaimDenied())
        if not waiting:
            self._claims.pop(client_id, None)
        holder = self._holders.get(client_id)
        if holder is not None and holder.user != user:
            self._holders[client_id] = holder_of(holder.member, user)
            holder.member.sessions.taken_over(client_id)
        self._owner.tell_changes(None)
        return True

    def release(self, member: Member, client_id: str) -> None:
        if self.holder(client_id) is member:
            self._free(client_id)
            self._messages.absent.look_at(client_id)
            self._owner.tell_changes(member)

    def withdraw(self, member: Member) -> None:
        """Forget the claims of a member that wait. The sessions that it has stay its own."""
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
        state = self._messages.sessions.get(client_id)
        if state is not None and state.connected:
            holder = self._holders.setdefault(client_id, holder_of(member, state.user)).member
            if holder is not member:
                member.sessions.taken_over(client_id)

    def hold_again(self, member: Member, client_id: str, user: str | None = None) -> None:
        """A member has had a connection, of which the log does not know, since before this process began.

        If another user was let in under this client identifier meanwhile, that user's connection and session end.
        """
        owner = self.owner(client_id)
        if None not in (user, owner) and user != owner:
            holder = self.holder(client_id)
            claim = _Claim(member, True, _nothing, Claimant(user))
            if holder is None or holder is member:
                self._grant(client_id, claim)
                return
            self._claims.setdefault(client_id, deque()).appendleft(claim)
            holder.sessions.taken_over(client_id)
            return
        holder = self._holders.setdefault(client_id, holder_of(member, user)).member
        self._quotas.holds(client_id, user)
        if holder is not member or client_id in self._claims:
            member.sessions.taken_over(client_id)

    def close_left(self, member: Member, client_ids: list[str]) -> None:
        """Close sessions of a member that is gone. Raises a StoreError; a claim gets the session even then."""
        sessions, holders = self._messages.sessions, self._holders
        left = [client_id for client_id in client_ids if self.holder(client_id) in (None, member)]
        states = [state for client_id in left if (state := sessions.get(client_id)) and state.connected]
        try:
            self._messages.absent.close(states)
            self._messages.absent.do_due()
        finally:
            for client_id in left:
                if client_id in holders:
                    self._free(client_id)
            self._owner.tell_changes(None)

    def held_by(self, member: Member) -> list[str]:
        """Sessions of a member; those that other members wait for come last."""
        had = [client_id for client_id, holder in self._holders.items() if holder.member is member]
        return sorted(had, key=self._claims.__contains__)

    def contested(self, member: Member) -> list[str]:
        """Sessions that this member has and others wait for."""
        return [
            client_id for client_id, waiting in self._claims.items() if waiting and self.holder(client_id) is member
        ]

    def _grant(self, client_id: str, claim: _Claim) -> None:
        try:
            state = self._messages.absent.claim(client_id, claim.clean_start)
        except StoreError:  # what has to be said of the old session cannot be stored, nor can a new one
            state = self._messages.sessions.get(client_id)
        self._holders[client_id] = holder_of(claim.member, claim.claimant.user)
        self._quotas.holds(client_id, claim.claimant.user)
        claim.then(state)

    def presence_changed(self, client_id: str) -> None:
        """As a PresenceListener: a record changed a session's holder, or ended it. Nothing may be stored now."""
        state = self._messages.sessions.get(client_id)
        if state is not None:
            self._quotas.unlogged.lets_go(client_id)
        if client_id in self._holders and (state is None or not state.connected):
            self._free(client_id)

    def _free(self, client_id: str) -> None:
        del self._holders[client_id]
        self._quotas.unlogged.lets_go(client_id)
        self.presences.pop(client_id, None)
        if client_id in self._claims:
            self.freed.append(client_id)

    def grant_freed(self) -> None:
        """Give the sessions that are free now to the first member that waits for each."""
        freed, self.freed = self.freed, []
        for client_id in dict.fromkeys(freed):
            waiting = self._claims.get(client_id)
            if waiting and client_id not in self._holders:
                self._grant(client_id, waiting.popleft())
            if waiting:
                self._holders[client_id].member.sessions.taken_over(client_id)
            else:
                self._claims.pop(client_id, None)


def _nothing(_: object) -> None:
    """No client waits for this claim."""
