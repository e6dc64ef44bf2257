"""Work on a table that is done while the log has nothing new, a little at a time."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from typing import ClassVar, Final

from penstock.tier.errors import TierError
from penstock.tier.objects import ObjectFolder

log = logging.getLogger("penstock.tier")

PAUSE_S: Final = 600.0  # after a failure


class Chore(ABC):
    """Owner of one such work. For the thread that the table is for."""

    undone: ClassVar[str]
    """What is said, with the reason, when a step fails."""

    def __init__(self, objects: ObjectFolder) -> None:
        self._objects = objects
        self._not_before_s = 0.0

    def step(self) -> bool:
        """Do a little of what there is to do. False: there is nothing at present, or it failed, which is logged."""
        if time.monotonic() < self._not_before_s:
            return False
        try:
            return self._step()
        except TierError as error:
            log.error("%s: %s", self.undone, error)
            self._failed(error)
            self.abandon()
            return False

    @abstractmethod
    def _step(self) -> bool:
        """As step(). Raises TierError."""

    def _failed(self, error: TierError) -> None:
        self._pause(PAUSE_S)

    def _pause(self, seconds: float) -> None:
        self._not_before_s = time.monotonic() + seconds

    @abstractmethod
    def abandon(self) -> None:
        """Leave nothing of what is begun."""
