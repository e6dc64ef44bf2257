"""Logins of users who exist, from addresses where logins fail: who is right comes in before all who are wrong there.

Whoever floods an address with made-up users fills its line, and those who have an account there would wait as long as
the flood's. They are verified early, outside of the line. Only who is right learns it early: all others have their
answer when their turn comes, after as much work as a made-up user takes, so the time does not tell who exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.auth.attempts import Attempts
from gateway.auth.fair_queue import FairQueue, Job
from gateway.auth.identity import Answer, Credentials, Identity, Verdict


class Verifier(Protocol):
    """Who knows the users and their passwords."""

    def knows(self, username: str) -> bool:
        """Whether there is such a user."""

    def verify(self, credentials: Credentials, answer: Answer) -> None:
        """Call `answer` once, from the loop."""

    def pretend(self, credentials: Credentials, then: Callable[[], None]) -> None:
        """Take as long as verify() does, for nothing."""


class EarlyLogins:
    """Owner of the logins that are verified early: at a time one of a user at an address."""

    def __init__(self, verifier: Verifier, attempts: Attempts, queue: FairQueue, early: FairQueue) -> None:
        """`queue` is the line for all, `early` that of these."""
        self.verifier = verifier
        self.attempts = attempts
        self.queue = queue
        self.early = early
        self._under_way: set[tuple[str, str]] = set()

    def takes(self, credentials: Credentials) -> bool:
        user = credentials.username or ""
        return self.verifier.knows(user) and (credentials.source, user) not in self._under_way

    def begin(self, credentials: Credentials, answer: Answer) -> None:
        """Of a login that it takes, from an address where logins failed. `answer` is called once, from the loop."""
        self._under_way.add((credentials.source, credentials.username or ""))
        EarlyLogin(self, credentials, answer).begin()

    def end(self, credentials: Credentials) -> None:
        self._under_way.discard((credentials.source, credentials.username or ""))


class EarlyLogin:
    """One of them: a job in each line. Whichever has its turn first verifies the password."""

    __slots__ = (
        "_answer",
        "_credentials",
        "_early",
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
        self._answer: Answer | None = answer  # None: it was called, or need not be
        source, user = credentials.source, credentials.username or ""
        self._turn = Job(source, user, self._have_turn)
        self._early = Job(source, user, self._verify_early)
        self._is_early = False  # or was
        self._has_had_turn = False
        self._has_verified = False
        self._verdict: Verdict = None

    def begin(self) -> None:
        self._credentials.attempt.waits(self._cancel)
        self._logins.queue.put(self._turn, slow=True)
        if self._turn.lane is not None:  # it waits
            self._logins.early.put(self._early, slow=False)

    def _cancel(self) -> None:
        """The client left. A password that was found wrong, or is being verified, counts all the same."""
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

    def _tell(self, verdict: Verdict) -> None:
        answer, self._answer = self._answer, None
        self._logins.end(self._credentials)
        if answer is not None:
            answer(verdict)

    # --- early

    def _verify_early(self) -> None:
        self._is_early = True
        self._logins.verifier.verify(self._credentials, self._heard_early)

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
            logins.verifier.verify(credentials, self._heard_in_turn)

    def _pretended(self) -> None:
        self._logins.queue.done(slow=True)
        self._has_had_turn = True
        if self._has_verified:
            self._tell(self._verdict)

    def _heard_in_turn(self, verdict: Verdict) -> None:
        self._logins.queue.done(slow=True)
        self._tell(verdict)
