"""Actions that a Replica asks of its store, in the order in which they must be done.

The Replica's own state already includes all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from store.replication.frames import Leader, LogFrame


class SendFrame(NamedTuple):
    """Produce `value`, which is the frame, with acks=all; then call Replica.produced() or unanswered()."""

    frame: LogFrame
    value: bytes


class WriteAccepted(NamedTuple):
    """A standby appends these bytes to its log and applies them, before whatever follows."""

    base: int
    data: bytes


class AcceptedTo(NamedTuple):
    """The leader's appends are accepted up to a log_offset: acknowledgements, deliveries and readers go on."""

    epoch: int
    log_offset: int


class BeginLeading(NamedTuple):
    """This store leads in the epoch: its log is what was accepted, and its state is applied up to there.

    A leader that took a new epoch keeps its log and state; `log_offset` then lies before the log's end.
    """

    epoch: int
    log_offset: int


class FollowLeader(NamedTuple):
    """Another process leads in the epoch; users are told its address."""

    epoch: int
    leader: Leader


class DiscardState(NamedTuple):
    """This store led, and another one leads now.

    It discards its memory, cuts its log back to `log_offset`, and opens both again as after a crash, as a standby.
    """

    log_offset: int


class MayEnd(NamedTuple):
    """This store has said that it stops, or did not lead: it may end."""


ReplicaAction = SendFrame | WriteAccepted | AcceptedTo | BeginLeading | FollowLeader | DiscardState | MayEnd
