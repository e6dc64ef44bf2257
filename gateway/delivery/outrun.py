"""Subscribers that read, and are far behind in messages of QoS 0 all the same: publishers wait for them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gateway.mqtt._mqtt import Reader
from gateway.sessions.session import Session

# Publishers wait for a subscriber that is this many messages behind. The log has about as much in memory, where
# reading costs least.
FAR_BEHIND = 16_384
FAST_PER_S = 10_000  # if it takes so many a second, or it is not known yet,
HELD_S = 0.05  # and for so long after it could take something
MEASURED_S = 0.05  # how many it takes is measured for so long at least


class ReadingPace(NamedTuple):
    """How a session reads, by the messages that one of its readers takes."""

    reader: Reader
    since_s: float  # of the caller's clock, when it was looked at the last time,
    position: int  # and stood here
    per_s: float  # that it took before that; infinite: it is not known yet


class Outrun:
    """Owner of the sessions that are far behind, and of how fast they read.

    A slow client takes what fits into its socket at once and then nothing for some time, so what it takes at once says
    little.
    """

    def __init__(self) -> None:
        self._paces: dict[Session, ReadingPace] = {}
        self._waited_for: dict[Session, float] = {}  # when they could take something, the latest at the end

    def __bool__(self) -> bool:
        """Whether publishers may have to wait."""
        return bool(self._waited_for)

    def goes_on(self, session: Session, readers: Iterable[Reader], most_lag: int, now_s: float) -> None:
        """A session can take something, for these readers. Publishers do not wait before a QoS 0 one lags by more."""
        far = min(FAR_BEHIND, most_lag // 2)
        pace = self._paces.get(session)
        if pace is None or pace.reader.lag <= far:
            reader = next((reader for reader in readers if reader.qos == 0 and reader.lag > far), None)
            if reader is None:
                self.is_through(session)
                return
            pace = self._paces[session] = ReadingPace(reader, now_s, reader.position, math.inf)
        elif now_s - pace.since_s >= MEASURED_S:
            reader = pace.reader
            per_s = (reader.position - pace.position) / (now_s - pace.since_s)
            pace = self._paces[session] = ReadingPace(reader, now_s, reader.position, per_s)
        self._waited_for.pop(session, None)
        if pace.per_s >= FAST_PER_S:
            self._waited_for[session] = now_s

    def is_through(self, session: Session) -> None:
        """It is not far behind any more, or gone."""
        if self._paces.pop(session, None) is not None:
            self._waited_for.pop(session, None)

    def is_any(self, now_s: float) -> bool:
        """Whether publishers are to wait."""
        if not self._waited_for:
            return False
        session = next(reversed(self._waited_for))
        return now_s - self._waited_for[session] < HELD_S
