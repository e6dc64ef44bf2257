"""A link that is not read from for a while, and that knows what its client has yet to take. Works without a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

from gateway.mqtt._mqtt import Link, Turn
from gateway.settings import GatewaySettings
from store.state.deadlines import Deadlines

L_contra = TypeVar("L_contra", bound="PausableLink", contravariant=True)


class Allowance(Protocol[L_contra]):
    """The remaining allowance of a link to publish."""

    def renew(self, connection: L_contra, now_s: float) -> float:
        """Give the link an allowance; or say for how long it is not to be listened to (s)."""


class PauseOwner(Protocol[L_contra]):
    """The owner of all links: why they have to wait, and who is told that they do."""

    settings: GatewaySettings
    turn: Turn
    deadlines: Deadlines

    @property
    def congested(self) -> bool:
        """The store has more to do than it can, so publishers wait."""

    def hold_back(self, connection: L_contra) -> None:
        """Read from a link again, by listen_again(), once the store is not congested."""

    def clogged(self, connection: L_contra) -> None:
        """The link's send buffer is full. Called in the middle of a write."""

    def unclogged(self, connection: L_contra) -> None:
        """The link's send buffer has drained."""

    def rest(self, go_on: Callable[[], object]) -> None:
        """Call `go_on` in a later turn: so much has come at once that others are to have theirs first."""


class PausableLink(Link):
    """A link with the reasons why it is not read from. The compiled part has some of them, and keeps what comes in."""

    __slots__ = ("held", "meter", "owner")
    owner: PauseOwner[Self]

    def __init__(self, owner: PauseOwner[Self]) -> None:
        Link.__init__(self, owner.turn)
        self.owner = owner
        self.meter: Allowance[Self] | None = None  # what it publishes counts, if `metered`
        self.held = False  # not listened to, since the store has enough to do

    # --- what comes in

    def wait(self, is_read: bool = False) -> None:
        """Keep the client's input until proceed(), and read no more than has come.

        `is_read`: some of it is read on, so that the connection's end is seen.
        """
        self.waiting = True
        if self.transport is not None and not is_read:
            self.transport.pause_reading()

    def on_full(self) -> None:
        """Stop reading: the connection waits, and its client has sent as much as is kept."""
        if self.transport is not None:
            self.transport.pause_reading()

    def proceed(self) -> None:
        """The CONNACK is written: deal with what came in meanwhile."""
        self.waiting = False
        self.resume_reading()
        self.go_on()

    def on_much(self) -> None:
        """Leave the rest of a large input for a later turn."""
        self.resting = True
        if self.transport is not None:
            self.transport.pause_reading()
        self.owner.rest(self.rest_is_over)

    def rest_is_over(self) -> None:
        self.resting = False
        self.resume_reading()
        if not (self.waiting or self.throttled):
            self.go_on()

    def on_spent(self: Self) -> None:
        """Take a new allowance, or wait until there is one. Meanwhile the client's silence does not count."""
        assert self.meter is not None
        now_s = self.turn.now_s
        pause_s = self.meter.renew(self, now_s)
        if pause_s and not self.closing:
            self.throttled = True
            self.last_seen_s = now_s + pause_s
            self.owner.deadlines.set((self, "quota"), now_s + pause_s, self._ask_again)
            if self.transport is not None:
                self.transport.pause_reading()

    def _ask_again(self) -> None:
        self.throttled = False
        self.on_spent()
        if not self.throttled:
            self.resume_reading()
            if not self.waiting:  # nor does anything come of it while it rests
                self.go_on()

    def on_congested(self: Self) -> None:
        """Read no more from the client while the store has more to do than it can."""
        if self.owner.congested and self.transport is not None and not (self.held or self.closing):
            self.held = True
            self.transport.pause_reading()
            self.owner.hold_back(self)

    def listen_again(self) -> None:
        """The store can take more."""
        self.held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and not self.is_deaf:
            self.transport.resume_reading()

    @property
    def is_deaf(self) -> bool:
        """True if the connection must not be read from."""
        waits = self.waiting or self.held or self.throttled or self.resting or self.held_for_crowd
        return waits or self.paused or self.closing

    # --- what goes out

    def let_wait(self, size_bytes: int) -> None:
        """No more is delivered while so much waits to be taken by the client."""
        if self.transport is not None:
            most = min(size_bytes, self.owner.settings.write_buffer_bytes)
            self.transport.set_write_buffer_limits(high=most)

    @property
    def waiting_bytes(self) -> int:
        """Sent, and not taken by the client so far, not counting what the system holds."""
        return int(self.transport.get_write_buffer_size()) if self.transport is not None else 0

    @property
    def all_waiting_bytes(self) -> int:
        """The same of all connections of this process; 0 where that is not known."""
        return int(self.transport.get_extra_info("held_bytes") or 0) if self.transport is not None else 0

    def pause_writing(self: Self) -> None:
        self.paused = True
        self.owner.clogged(self)

    def written_while_paused(self, size_bytes: int) -> None:
        """Deliveries stop when the transport is full, so these are answers. A client that takes none is not read."""
        self.unread_bytes += size_bytes
        if self.unread_bytes > self.owner.settings.write_buffer_bytes:
            self.transport.pause_reading()

    def resume_writing(self: Self) -> None:
        self.paused = False
        self.owner.unclogged(self)
        self.unread_bytes = 0
        self.resume_reading()
        if self.session is not None:
            self.accept_more()
