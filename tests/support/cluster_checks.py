"""What must hold of a simulated cluster, whatever happens to it."""

from __future__ import annotations

from store.replication.epochs import HighestEpoch
from store.replication.frames import Leader


class BrokenPromise(AssertionError):
    """Something that must hold does not."""


class ClusterChecks:
    """Sees all stores at once. Each method is told what a store does, and raises BrokenPromise."""

    def __init__(self, clocks_agree: bool) -> None:
        self.agreed = bytearray()
        """The longest log that any store has accepted; the others have a prefix of it."""
        self.acknowledged: dict[int, bytes] = {}
        self.shown = bytearray()  # to users
        self.gateway = HighestEpoch()
        self._clocks_agree = clocks_agree
        self._acknowledger: dict[int, Leader] = {}
        self._leaders: dict[int, Leader] = {}

    @staticmethod
    def expect(holds: bool, what: str) -> None:
        if not holds:
            raise BrokenPromise(what)

    def accepts(self, name: str, base: int, data: bytes) -> None:
        known = self.agreed[base : base + len(data)]
        self.expect(base <= len(self.agreed), f"{name} accepts at {base}, behind all others")
        self.expect(data.startswith(known), f"{name} accepts other bytes at {base} than others did")
        self.agreed += data[len(known) :]

    def acknowledges(self, leader: Leader, epoch: int, base: int, data: bytes) -> None:
        first = self._acknowledger.setdefault(epoch, leader)
        self.expect(first == leader, f"{first} and {leader} acknowledge in epoch {epoch}")
        known = self.acknowledged.setdefault(base, data)
        self.expect(known == data, f"two appends at {base} were acknowledged")

    def leads(self, name: str, leader: Leader, epoch: int, log_offset: int) -> None:
        first = self._leaders.setdefault(epoch, leader)
        self.expect(first == leader, f"{first} and {leader} lead in epoch {epoch}")
        self.expect(log_offset <= len(self.agreed), f"{name} leads from {log_offset} on, which nobody accepted")

    def serves(self, name: str, epoch: int) -> None:
        """A gateway asks it. Only if clocks run alike, no gateway has to refuse."""
        is_believed = self.gateway.admits(epoch)
        if self._clocks_agree:
            self.expect(is_believed, f"{name} serves in epoch {epoch} after another did in {self.gateway.epoch}")

    def delivered(self, base: int, data: bytes) -> None:
        known = self.shown[base : base + len(data)]
        self.expect(data.startswith(known), f"users are shown other bytes at {base} than before")
        if base <= len(self.shown):
            self.shown += data[len(known) :]

    def index_is_of_log(self, name: str, index: bytes, log: bytes) -> None:
        self.expect(log.startswith(index), f"the index of {name} has applied what its log does not have")

    def nothing_is_lost(self) -> None:
        """At the end."""
        for base, data in self.acknowledged.items():
            self.expect(self.agreed[base : base + len(data)] == data, f"what was acknowledged at {base} is not there")
        self.expect(self.agreed.startswith(self.shown), "users were shown what the log does not have")
