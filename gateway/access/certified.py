"""TLS connections whose client showed a certificate: they end when it expires, and when it does not count any more."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from gateway.access.recognition import Recognition
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.core import Core
from notify.steps import Steps

JUDGED_AT_A_TIME = 10
"""Certificates that are judged in one turn: each takes some 20 µs."""
MOST_AHEAD_S = 10 * 365 * 24 * 3600

WhyOut = Callable[[bytes], str]
"""Returns the reason why a certificate (DER) is no longer accepted; empty: it is accepted."""


class CertificateHolder(Protocol):
    """The layer of one connection, which keeps the certificate."""

    def certificate(self) -> bytes | None:
        """DER."""

    def end(self, reason_code: ReasonCode, why: str) -> None: ...


class Certified:
    """Owner of the connections that showed a certificate. Other connections cost nothing here."""

    def __init__(self, core: Core, recognition: Recognition) -> None:
        """`recognition` counts the connections that are ended because their certificate is no longer accepted."""
        self._turn, self._deadlines, self._soon = core.turn, core.deadlines, core.scheduler.soon
        self._recognition = recognition
        self._holders: dict[CertificateHolder, None] = {}
        self.epoch = 0
        """Grows when the accepted certificates change: a handshake that began before that is refused."""

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, holder: CertificateHolder, certificate: dict[str, Any], epoch: int) -> str:
        """Add a connection. Returns the reason why it is refused; empty: it may stay.

        `epoch`: the value of `self.epoch` when the handshake began.
        """
        left_s = ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()
        if left_s <= 0:  # which a resumed TLS session may bring
            return "its certificate has expired"
        if epoch != self.epoch:
            return "what certificates count was read again meanwhile"
        self._holders[holder] = None
        expired = partial(holder.end, ReasonCode.MAXIMUM_CONNECT_TIME, "its certificate has expired")
        self._deadlines.set((holder, "certificate"), self._turn.now_s + min(left_s, MOST_AHEAD_S), expired)
        return ""

    def left(self, holder: CertificateHolder) -> None:
        if holder in self._holders:
            del self._holders[holder]
            self._deadlines.cancel((holder, "certificate"))

    def judge_again(self, why_out: WhyOut, then: Callable[[], object]) -> None:
        """The accepted certificates have changed. `then` is called once all connections that are here are judged."""
        self.epoch += 1
        Steps(partial(self._judge_some, deque(self._holders), why_out, then), self._soon).start()

    def _judge_some(self, holders: deque[CertificateHolder], why_out: WhyOut, then: Callable[[], object]) -> bool:
        for _ in range(min(JUDGED_AT_A_TIME, len(holders))):
            holder = holders.popleft()
            certificate = holder.certificate() if holder in self._holders else None
            why = why_out(certificate) if certificate is not None else ""
            if why:
                self._recognition.count_disproved()
                holder.end(ReasonCode.NOT_AUTHORIZED, why)
        if not holders:
            then()
        return bool(holders)
