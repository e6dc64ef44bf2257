"""Subscribers that do read, but lag far in messages of QoS 0: publishers wait for them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gateway.mqtt._mqtt import Reader
from gateway.sessions.session import Session

# Publishers wait for a subscriber that is this many messages behind. The log has about as much in memory, where
# reading costs least.
FAR_BEHIND = 16_384
FAST_PER_S = 10_000  # messages a second; publishers wait only for a subscriber that takes as many, or was not measured,
HELD_S = 0.05  # and only for this time after the subscriber could take something
MEASURED_S = 0.05  # shortest time of a measurement


class ReadingPace(NamedTuple):
    """The speed of a session, measured at one of its readers."""

    reader: Reader
    since_s: float  # by the caller's clock: when the measurement began,
    position: int  # and the reader's position then
    per_s: float  # messages a second in the measurement before; infinite: there was none


class Outrun:
    """Owner of the sessions that lag far, and of their speed.

    A slow client takes at once what fits into its socket, and then nothing for some time, so a short measurement says
    little.
    """

    def __init__(self) -> None:
        self._paces: dict[Session, ReadingPace] = {}
        self._waited_for: dict[Session, float] = {}  # when each could last take something, the latest at the end

    def __bool__(self) -> bool:
        """True if publishers may have to wait."""
        return bool(self._waited_for)

    def goes_on(self, session: Session, readers: Iterable[Reader], most_lag: int, now_s: float) -> None:
        """Note that a session can take messages, for these readers; measure its speed if a QoS 0 reader lags far.

        A reader lags far by FAR_BEHIND messages, or by half of `most_lag`, from which on messages are dropped for it.
        """
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
        """Forget a session that does not lag far any more, or has ended."""
        if self._paces.pop(session, None) is not None:
            self._waited_for.pop(session, None)

    def is_any(self, now_s: float) -> bool:
        """True if publishers have to wait now."""
        if not self._waited_for:
            return False
        session = next(reversed(self._waited_for))
        return now_s - self._waited_for[session] < HELD_S
