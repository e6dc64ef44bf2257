"""Requests that store something: Appends of gateways, Publishes of clients. What may take long is done in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from notify.server.handlers.connected import Connected, Handlers
from notify.server.peers import Peer
from store.errors import StoreError, WireError
from store.records._records import changes_in, cuts_between_changes, topic_runs
from store.wire import messages as wire
from store.wire.frames import Frame
from store.wire.messages import FailureCode, Role

TOPICS_AT_ONCE = 16
LEAST_BYTES = 8  # of a change: a retained message counts 6, and has 48 bytes
LARGE_PUBLISH_BYTES = 1 << 20
"""What has more is copied in a turn, and stored in another: each takes some 0.5 ms for a MiB."""
LONG_BYTES = 16 << 10
"""What is shorter has some 250 records at most."""
CHANGES_AT_ONCE = 128
"""Checking a change of state takes some 5 µs."""


class AppendHandlers:
    """Handles what the peer of one connection stores."""

    def __init__(self, connected: Connected) -> None:
        self._connected = connected
        self._applying = connected.peers.hub.messages.applying

    def append(self, frame: Frame, message: wire.Append) -> None:
        connected, appends = self._connected, self._connected.peer.appends
        connected.figures.appends += 1
        answer = appends.append(message.sequence, frame.records, connected.peers.append_limit_bytes)
        self._check_refused("Appends")
        stored = answer if isinstance(answer, wire.Appended) else None
        mark = stored.end or connected.peer.store.appends.mark if stored is not None else 0
        refused = 0 if stored is not None else message.sequence
        if self._applying.left_bytes:
            connected.held.behind(partial(connected.answers.add, frame.request_id, mark, answer, refused))
        else:
            connected.answers.add(frame.request_id, mark, answer, refused)

    def publish(self, frame: Frame, message: wire.Publish) -> None:
        connected, peer = self._connected, self._connected.peer
        connected.figures.appends += 1
        published = peer.appends.publish(message.sequence, frame.records, connected.peers.append_limit_bytes)
        self._check_refused("Publishes")
        add = connected.answers.add_published
        connected.held.behind(lambda: add(peer, frame.request_id, message, *published()))
        connected.wake()

    def _check_refused(self, name: str) -> None:
        """Raises WireError for a peer that goes on although too many of its requests were refused."""
        if self._connected.peer.appends.has_too_many_refused:
            raise WireError(f"too many {name} were refused without a Pong in between")

    def refuse(self, frame: Frame, code: FailureCode, why: str) -> None:
        """Refuse what is not looked at; a sequence of appends goes on after it."""
        assert isinstance(frame.message, wire.Append | wire.Publish)
        connected, appends = self._connected, self._connected.peer.appends
        answer = appends.refuse(frame.message.sequence, wire.Failed(code, why))
        if appends.has_too_many_refused:
            connected.fail(WireError("too many Publishes were refused without a Pong in between"))
        connected.answers.add(frame.request_id, 0, answer, frame.message.sequence)
        connected.wake()

    def too_many(self, frame: Frame) -> str:
        """The reason why a client's Append or Publish is not looked at, as it is stored as a whole; empty if it may be.

        One that is stored already is not refused: its answer says so.
        """
        peer, most = self._connected.peer, self._connected.peers.settings.max_changes_per_publish
        if len(frame.records) < most * LEAST_BYTES or peer.role is not Role.CLIENT:
            return ""
        if (
            not isinstance(frame.message, wire.Append | wire.Publish)
            or frame.message.sequence <= peer.appends.confirmed
        ):
            return ""
        count = changes_in(frame.records)
        if count <= most:
            return ""
        return (
            f"its messages count as {count} changes, and {most} may be stored as one (wire.max_changes_per_publish): "
            "each change of topic counts 1, each retained or delayed message 6; publish fewer at a time"
        )

    def in_steps(self, frame: Frame, handle: Callable[[], object]) -> Iterator[object] | None:
        """The steps to take before `handle` stores many records; None: none."""
        peer, held, most = self._connected.peer, self._connected.held, self._connected.peers.append_limit_bytes
        if peer.role is Role.CLIENT and frame.message.sequence > peer.appends.confirmed:  # type: ignore[attr-defined]
            return _before_publish(peer, frame.records, most, partial(held.do, handle))
        if cuts := cuts_between_changes(frame.records, CHANGES_AT_ONCE):
            return _before_append(peer, frame.records, cuts, most, partial(held.do, handle))
        return None


def _before_publish(peer: Peer, records: memoryview, limit_bytes: int, then: Callable[[], None]) -> Iterator[None]:
    """Look up the queues of new topics, and copy large records, in steps, before `then` stores all of them at
    once."""
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


def _before_append(
    peer: Peer, records: memoryview, cuts: list[int], limit_bytes: int, then: Callable[[], None]
) -> Iterator[None]:
    """Check a gateway's changes of state, a piece between two `cuts` in each step, before `then` stores all of them."""
    yield from peer.appends.prepared.make(records, cuts, Role.GATEWAY, peer.appends.limits(limit_bytes), peer.name)
    then()


HANDLERS: Handlers = {
    wire.Append: AppendHandlers.append,
    wire.Publish: AppendHandlers.publish,
}
