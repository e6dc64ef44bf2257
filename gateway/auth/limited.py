"""Limits authenticators that are expensive to ask: a fair queue, and no turn for clients with too many failures.

Cached answers come before all of that.
"""

from __future__ import annotations

from typing import Protocol

from gateway.auth.attempts import Attempts
from gateway.auth.early import EarlyLogins
from gateway.auth.fair_queue import FairQueue, Job
from gateway.auth.identity import Answer, Credentials, LoginRefused, Verdict


class Costly(Protocol):
    """An expensive authenticator in two parts."""

    def recall(self, credentials: Credentials, answer: Answer) -> bool:
        """Call `answer` at once if that costs nothing. Returns whether it did."""

    def verify(self, credentials: Credentials, answer: Answer) -> None:
        """Verify, and call `answer` once, from the loop: at once, or later."""


class Limited:
    """An Authenticator that limits the use of another one."""

    def __init__(
        self,
        inner: Costly,
        attempts: Attempts,
        queue: FairQueue,
        most: int | None = None,
        full: LoginRefused | None = None,
        early: EarlyLogins | None = None,
    ) -> None:
        """Limit `inner`.

        `full`: the answer while the queue has `most` unfinished jobs; `most` None: no such limit. `early`: takes logins
        of known users at addresses where logins fail.
        """
        self._early = early
        self._inner = inner
        self._most = most
        self._full = full
        self._attempts = attempts
        self._queue = queue

    def check(self, credentials: Credentials, answer: Answer) -> None:
        if not self._inner.recall(credentials, answer):
            self._wait(credentials, answer)

    def _wait(self, credentials: Credentials, answer: Answer) -> None:
        source, user = credentials.source, credentials.username or ""
        refused = self._attempts.refuses(source, user)
        if refused is not None:
            answer(refused)
            return
        if self._most is not None and self._queue.unfinished >= self._most:
            answer(self._full)
            return
        slow = self._attempts.is_slow(source)
        if slow and self._early is not None and self._early.takes(credentials):
            self._early.begin(credentials, answer)
            return
        job = Job(source, user, lambda: self._begin(credentials, answer, slow))
        credentials.attempt.waits(job.cancel)
        self._queue.put(job, slow)

    def _begin(self, credentials: Credentials, answer: Answer, slow: bool) -> None:
        """The job has a slot. Other logins may have failed meanwhile."""
        refused = self._attempts.refuses(credentials.source, credentials.username or "")
        if refused is None and not slow and self._attempts.is_slow(credentials.source):
            self._wait(credentials, answer)
            self._queue.done(slow)
            return

        def heard(verdict: Verdict) -> None:
            answer(verdict)  # which counts a failure, before the next job is begun
            self._queue.done(slow)

        if refused is not None:
            heard(refused)
        elif not self._inner.recall(credentials, heard):
            self._verify(credentials, answer, slow)

    def _verify(self, credentials: Credentials, answer: Answer, slow: bool) -> None:
        """Verify, unless as many are under way as may fail: then once one of them has ended."""
        ended = self._attempts.under_way.begin(credentials, lambda: self._wait(credentials, answer))
        if ended is None:
            self._queue.done(slow)
            return

        def heard(verdict: Verdict) -> None:
            answer(verdict)
            ended()
            self._queue.done(slow)

        self._inner.verify(credentials, heard)
