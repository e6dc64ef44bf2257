"""Frames with thousands of items, dealt with some items at a time: what is behind them waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

from lightqueue.reading import replay
from notify.requests.contents import failure_code, text_fault
from notify.server.events import Push
from notify.server.peers import Peer
from notify.settings import WireSettings
from store.errors import StoreError, WireError
from store.records._records import changes_in, topic_runs
from store.wire import log_messages as of_log
from store.wire import messages as wire
from store.wire.frames import Frame
from store.wire.messages import Role

ITEMS_AT_ONCE = 128
TOPICS_AT_ONCE = 16
LEAST_BYTES = 8  # of a change: a retained message counts 6, and has 48 bytes
LARGE_PUBLISH_BYTES = 1 << 20
"""What has more is copied in a turn, and stored in another: each takes some 0.5 ms for a MiB."""
LONG_BYTES = 16 << 10
"""What is shorter has some 250 records at most."""
CHANGES_AT_ONCE = 128
"""Checking a change of state takes some 5 µs."""


def too_many(peer: Peer, frame: Frame, settings: WireSettings) -> str:
    """Why a client's frame is not looked at; empty if it may be. It is neither judged nor read before."""
    message = frame.message
    if isinstance(message, of_log.QueueOffsets) and len(message.topics) > of_log.MOST_TOPICS:
        return f"more than {of_log.MOST_TOPICS} topics at a time"
    return _too_many_changes(peer, frame, settings)


def _too_many_changes(peer: Peer, frame: Frame, settings: WireSettings) -> str:
    """The same of an Append or Publish, as it is stored as a whole.

    One that is stored already is not refused: its answer says so.
    """
    most = settings.max_changes_per_publish
    if len(frame.records) < most * LEAST_BYTES or peer.role is not Role.CLIENT:
        return ""
    if not isinstance(frame.message, wire.Append | wire.Publish) or frame.message.sequence <= peer.appends.confirmed:
        return ""
    count = changes_in(frame.records)
    if count <= most:
        return ""
    return (
        f"its messages count as {count} changes, and {most} may be stored as one (wire.max_changes_per_publish): each "
        "change of topic counts 1, each retained or delayed message 6; publish fewer at a time"
    )


def publish(peer: Peer, records: memoryview, limit_bytes: int, then: Callable[[], None]) -> Iterator[None]:
    """Have the queues of new topics looked up, and large records copied, before `then` stores them: it would do all of
    that at once."""
    weigh = peer.hub.messages.queues.dispatcher.weigh
    try:
        for number, (topic, _, _, is_queued) in enumerate(topic_runs(records), 1):
            if is_queued:
                weigh(topic)
            if number % TOPICS_AT_ONCE == 0:
                yield
    except (StoreError, ValueError):  # storing them meets that as well, and it is said there
        pass
    if len(records) >= LARGE_PUBLISH_BYTES:
        yield
        yield from peer.appends.prepared.make(records, [], Role.CLIENT, peer.appends.limits(limit_bytes), peer.name)
    then()


def append(
    peer: Peer, records: memoryview, cuts: list[int], limit_bytes: int, then: Callable[[], None]
) -> Iterator[None]:
    """Check a gateway's changes of state, a piece between two `cuts` in each step, before `then` stores all of them."""
    yield from peer.appends.prepared.make(records, cuts, Role.GATEWAY, peer.appends.limits(limit_bytes), peer.name)
    then()


def unfollow(peer: Peer, push: Push, message: wire.Unfollow) -> Iterator[None]:
    for at in range(0, len(message.refs), ITEMS_AT_ONCE):
        refs = message.refs[at : at + ITEMS_AT_ONCE]
        push.stop(refs)
        peer.followed.unfollow(refs)
        yield


def enough(push: Push, message: wire.Enough) -> Iterator[None]:
    for at in range(0, len(message.refs), ITEMS_AT_ONCE):
        push.stop(message.refs[at : at + ITEMS_AT_ONCE])
        yield


def floors(peer: Peer, message: wire.Floors) -> Iterator[None]:
    for at in range(0, len(message.floors), ITEMS_AT_ONCE):
        peer.followed.set_floors(message.floors[at : at + ITEMS_AT_ONCE])
        yield


def check(peer: Peer, refs: list[int], then: Callable[[list[tuple[int, int]]], None]) -> Iterator[None]:
    """`then` gets where these queues end, or ended some steps before."""
    ends: list[tuple[int, int]] = []
    for at in range(0, len(refs), ITEMS_AT_ONCE):
        ends += peer.followed.ends(refs[at : at + ITEMS_AT_ONCE])
        yield
    then(ends)


def queue_offsets(peer: Peer, message: of_log.QueueOffsets, then: Callable[[wire.WireMessage], None]) -> Iterator[None]:
    """`then` gets the answer. What stands before a log_offset does not change between the steps."""
    messages, found = peer.hub.messages, []
    try:
        for number, topic in enumerate(message.topics, 1):
            found.append(replay.count_before(messages, topic, message.before))
            if number % TOPICS_AT_ONCE == 0:
                yield
    except StoreError as error:
        then(wire.Failed(failure_code(error), str(error)))
    else:
        then(of_log.QueueOffsetsFound(found))


def holds(peer: Peer, message: wire.Holds) -> Iterator[None]:
    """Raises WireError."""
    users = message.users[: len(message.client_ids)]
    for client_id, user in zip_longest(message.client_ids, users):
        fault = text_fault(client_id)
        if fault:
            raise WireError(f"client_id {fault}")
        peer.store.sessions.hold_again(client_id, user)
        yield
