"""Early logins: known users at an address where logins fail come in before all others that wait there.

A flood of invented users from an address fills its queue, and real users there would wait as long as the flood does. So
their passwords are verified early, outside the queue. Only a successful login is answered early. All others get their
answer when their turn comes, after as much work as an invented user costs, so the time does not reveal which users
exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.auth.attempts import Attempts
from gateway.auth.fair_queue import FairQueue, Job
from gateway.auth.identity import Answer, Credentials, Identity, Verdict


class Verifier(Protocol):
    """Knows the users and verifies their passwords."""

    def knows(self, username: str) -> bool:
        """True if there is a user with this name."""

    def verify(self, credentials: Credentials, answer: Answer) -> None:
        """Verify the password, and call `answer` once, from the loop."""

    def pretend(self, credentials: Credentials, then: Callable[[], None]) -> None:
        """Take as long as verify() does, without effect."""


class EarlyLogins:
    """Owner of the early logins: at most one at a time for a user at an address."""

    def __init__(self, verifier: Verifier, attempts: Attempts, queue: FairQueue, early: FairQueue) -> None:
        """`queue`: for all logins; `early`: for early ones."""
        self.verifier = verifier
        self.attempts = attempts
        self.queue = queue
        self.early = early
        self._under_way: set[tuple[str, str]] = set()

    def takes(self, credentials: Credentials) -> bool:
        user = credentials.username or ""
        return self.verifier.knows(user) and (credentials.source, user) not in self._under_way

    def begin(self, credentials: Credentials, answer: Answer) -> None:
        """Begin a login that takes() accepted, from an address where logins failed. Calls `answer` once, from
        the loop.
        """
        self._under_way.add((credentials.source, credentials.username or ""))
        EarlyLogin(self, credentials, answer).begin()

    def end(self, credentials: Credentials) -> None:
        self._under_way.discard((credentials.source, credentials.username or ""))


class EarlyLogin:
    """One early login: a job in each queue. The job that comes first verifies the password."""

    __slots__ = (
        "_answer",
        "_credentials",
        "_early",
        "_ended",
        "_has_had_turn",
        "_has_verified",
        "_is_early",
        "_logins",
        "_turn",
        "_verdict",
    )

    def __init__(self, logins: EarlyLogins, credentials: Credentials, answer: Answer) -> None:
        self._logins = logins
        self._credentials = credentials
        self._answer: Answer | None = answer  # None: it was called, or the client left
        source, user = credentials.source, credentials.username or ""
        self._turn = Job(source, user, self._have_turn)
        self._early = Job(source, user, self._verify_early)
        self._is_early = False  # the early job has begun
        self._has_had_turn = False
        self._has_verified = False
        self._verdict: Verdict = None
        self._ended: Callable[[], None] | None = None  # tells that the verification is not under way any more

    def begin(self) -> None:
        self._credentials.attempt.waits(self._cancel)
        self._logins.queue.put(self._turn, slow=True)
        if self._turn.lane is not None:  # it waits
            self._logins.early.put(self._early, slow=False)

    def _cancel(self) -> None:
        """End because the client left. A password found wrong, or in verification, counts all the same."""
        if self._answer is None:
            return
        is_waiting = self._turn.lane is not None
        self._turn.cancel()
        self._early.cancel()
        if self._has_verified:
            self._tell(self._verdict)
        elif self._is_early:
            self._has_had_turn = True
        elif is_waiting:
            self._answer = None
            self._logins.end(self._credentials)

    def _leave(self) -> None:
        """End because the client left before there was room."""
        self._answer = None
        self._logins.end(self._credentials)

    def _tell(self, verdict: Verdict) -> None:
        answer, self._answer = self._answer, None
        self._logins.end(self._credentials)
        if answer is not None:
            answer(verdict)
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    # --- early

    def _verify_early(self) -> None:
        """Verify the password now, if it may be wrong without passing a limit; else it has its turn alone."""
        attempts, credentials = self._logins.attempts, self._credentials
        if attempts.refuses(credentials.source, credentials.username or "") is None:
            self._ended = attempts.under_way.begin(credentials, None)
        if self._ended is None:
            self._logins.early.done(slow=False)
            return
        self._is_early = True
        self._logins.verifier.verify(credentials, self._heard_early)

    def _heard_early(self, verdict: Verdict) -> None:
        self._logins.early.done(slow=False)
        self._has_verified, self._verdict = True, verdict
        if isinstance(verdict, Identity):
            self._turn.cancel()
            self._tell(verdict)
        elif self._has_had_turn:
            self._tell(verdict)

    # --- in turn

    def _have_turn(self) -> None:
        logins, credentials = self._logins, self._credentials
        refused = logins.attempts.refuses(credentials.source, credentials.username or "")
        if refused is not None:
            self._early.cancel()
            logins.queue.done(slow=True)
            self._tell(refused)
        elif self._is_early:
            logins.verifier.pretend(credentials, self._pretended)
        else:
            self._early.cancel()
            self._ended = logins.attempts.under_way.begin(credentials, self._wait_again)
            if self._ended is None:
                credentials.attempt.waits(self._leave)
                logins.queue.done(slow=True)
            else:
                logins.verifier.verify(credentials, self._heard_in_turn)

    def _wait_again(self) -> None:
        """Queue a job again that found no room in its turn."""
        if self._answer is None:
            return
        self._turn = Job(self._turn.source, self._turn.user, self._have_turn)
        self._credentials.attempt.waits(self._cancel)
        self._logins.queue.put(self._turn, slow=True)

    def _pretended(self) -> None:
        self._logins.queue.done(slow=True)
        self._has_had_turn = True
        if self._has_verified:
            self._tell(self._verdict)

    def _heard_in_turn(self, verdict: Verdict) -> None:
        self._tell(verdict)
        self._logins.queue.done(slow=True)
