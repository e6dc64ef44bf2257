"""A large Publish or Append is applied in steps, one in a turn of the loop, with its other business in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from notify.local.hub import Hub
from notify.steps import Steps
from store.errors import StoreError


class ApplyingOwner(Protocol):
    """The owner of the store in which the steps are taken."""

    def do_upkeep(self) -> None:
        """Do what stores something by the clock."""

    def not_applied(self, error: StoreError) -> None:
        """A step has to be tried again, for this reason."""


class ApplyingSteps:
    """Owner of the steps, and of the upkeep that was left out meanwhile."""

    def __init__(
        self,
        hub: Hub,
        call_soon: Callable[[Callable[[], None]], object],
        owner: ApplyingOwner,
    ) -> None:
        self._hub = hub
        self._owner = owner
        self._steps = Steps(self._step, call_soon)
        self._was_under_way = self._is_overdue = False

    def tick(self) -> None:
        """Do periodic upkeep, unless something is being applied; then the upkeep comes after that."""
        applying = self._hub.messages.applying
        self._is_overdue = applying.left_bytes > 0
        if not self._is_overdue or applying.has_failed:
            self._owner.do_upkeep()
        self.go_on()

    def go_on(self) -> None:
        """Call this once in a turn in which something was stored, before anything else is stored."""
        if self._hub.messages.applying.left_bytes:
            self._was_under_way = True
            self._steps.start()
        elif self._was_under_way:
            self._was_under_way = False
            self._hub.messages.do_due()
            self._hub.tell_changes()
            if self._is_overdue:
                self._is_overdue = False
                self._owner.do_upkeep()

    def stop(self) -> None:
        self._steps.stop()

    def _step(self) -> bool:
        try:
            has_more = self._hub.messages.applying.step()
        except StoreError as error:
            self._owner.not_applied(error)
            return False
        if not has_more:
            self.go_on()
        return has_more
