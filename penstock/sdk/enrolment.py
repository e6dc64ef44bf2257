"""A client as a consumer of a group: whether the store has it as one on this connection, and the reference to it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class AtStore(Enum):
    """The store's view of a consumer. CHANGES has the order."""

    ABSENT = "it is no consumer on this connection"
    READY = "it is a consumer, and no request for messages is open"
    ASKED = "a request for messages is open"


CHANGES: Mapping[AtStore, Mapping[AtStore, str]] = {
    AtStore.ABSENT: {AtStore.READY: "GroupOpened"},
    AtStore.READY: {AtStore.ASKED: "Pop", AtStore.ABSENT: "GroupClose, or the connection ended"},
    AtStore.ASKED: {AtStore.READY: "Popped", AtStore.ABSENT: "GroupClose, or the connection ended"},
}
"""Which state may follow which, and at which message."""


class Enrolment:
    """The state of one consumer on the current connection, and its reference there."""

    __slots__ = ("ref", "state")

    def __init__(self) -> None:
        self.state = AtStore.ABSENT
        self.ref: int | None = None  # None: ABSENT

    def opened(self, ref: int) -> None:
        self._enter(AtStore.READY)
        self.ref = ref

    def asked(self) -> None:
        self._enter(AtStore.ASKED)

    def answered(self) -> None:
        """The request for messages has its answer. It changes nothing if the consumer is ABSENT by now."""
        if self.state is AtStore.ASKED:
            self._enter(AtStore.READY)

    def lost(self) -> None:
        if self.state is not AtStore.ABSENT:
            self._enter(AtStore.ABSENT)
        self.ref = None

    def _enter(self, state: AtStore) -> None:
        assert state in CHANGES[self.state], f"{self.state} -> {state}"
        self.state = state
