"""The way of a peer's frame to its handler: permissions, a wait for records that are being applied, preparation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

from notify.requests.permissions import narrowed, unstated, wanted_by, why_not
from notify.server.handlers import appends as of_appends
from notify.server.handlers import life as of_life
from notify.server.handlers import operators as of_operators
from notify.server.handlers import queues as of_queues
from notify.server.handlers import reads as of_reads
from notify.server.handlers import sessions as of_sessions
from notify.server.handlers.connected import Connected, Handlers
from notify.server.incoming import NEVER_HELD, Incoming
from store.wire import messages as wire
from store.wire.frames import Frame
from store.wire.log_messages import MOST_TOPICS, QueueOffsets
from store.wire.messages import FailureCode, Hello, Role, WireMessage


class Handling:
    """Owner of the handlers of one connection, and of whether its frames wait for another server's judgement."""

    def __init__(self, connected: Connected, hello: Hello, taken_over: Callable[[str], None]) -> None:
        """`taken_over`: see OperatorHandlers. `incoming` is to be set before a frame comes."""
        self.incoming: Incoming
        self.is_judged = False  # a frame waits for another server, which says what its user may do
        self.appends = of_appends.AppendHandlers(connected)
        self.queues = of_queues.QueueHandlers(connected, hello)
        self.reads = of_reads.ReadHandlers(connected, partial(setattr, self, "is_judged"))
        self.sessions = of_sessions.SessionHandlers(connected)
        self.operators = of_operators.OperatorHandlers(connected, hello, taken_over)
        self.life = of_life.LifeHandlers(connected)
        self._connected = connected
        self._is_client = connected.peer.role is Role.CLIENT

    def deal_with(self, frame: Frame) -> None:
        """Handle a frame, if its peer may ask that: gateways and operators see to it themselves."""
        connected, own = self._connected, self._connected.peer.own
        if not self._is_client:
            self.incoming.work = self._handled(frame)
        elif fault := unstated(frame.message):
            self._refuse(frame, FailureCode.NOT_PERMITTED, fault)
        elif too_many := self._too_many(frame):
            self._refuse(frame, FailureCode.BAD_REQUEST, too_many)
        elif fault := own.fault(frame.message):
            connected.answer(frame.request_id, wire.Failed(FailureCode.NOT_ALLOWED, fault))
        elif connected.permits.lets(frame.message):
            self.incoming.work = self._handled(frame)
        else:
            self.incoming.work = self._if_permitted(narrowed(frame, own.names))

    def _too_many(self, frame: Frame) -> str:
        """The limit that refuses a client's frame; empty: none.

        Call this before permissions are checked and records are read.
        """
        if isinstance(frame.message, QueueOffsets) and len(frame.message.topics) > MOST_TOPICS:
            return f"more than {MOST_TOPICS} topics at a time"
        return self.appends.too_many(frame)

    def _if_permitted(self, frame: Frame) -> Iterator[object]:
        """Judge a frame and handle it, in steps. Those after it wait until it is known whether the user may."""
        connected = self._connected

        def heard() -> None:
            self.is_judged = False
            if not connected.out.is_closing:
                connected.wake()

        waits = partial(setattr, self, "is_judged", True)
        answer, record = yield from self._fetched(frame, waits, heard)
        wanted = partial(wanted_by, frame, connected.peers.hub.messages, connected.peer.own.names, record)
        refused = yield from connected.permits.judging(wanted, waits, heard)
        if refused is None and answer is not None:
            connected.figures.reads += 1
            connected.answer(frame.request_id, answer, record)
        elif refused is None:
            yield from self._handled(frame) or ()
        else:
            connected.figures.not_permitted += 1
            self._refuse(frame, FailureCode.NOT_PERMITTED, why_not(refused, connected.permits.name))

    def _fetched(
        self, frame: Frame, waits: Callable[[], None], heard: Callable[[], None]
    ) -> Generator[bool, None, tuple[WireMessage | None, bytes]]:
        """The answer of the tier, if what a client may read depends on the message that it asks for; else None."""
        connected, reads = self._connected, self._connected.peer.store.tier_reads
        question = reads.question(frame.message, 1) if isinstance(frame.message, wire.Get) else None
        if question is None:
            return None, b""
        found: list[tuple[WireMessage, bytes]] = []

        def came(answer: WireMessage, records: bytes) -> None:
            found.append((answer, records))
            heard()

        reads.ask(frame.message, question, connected.room_bytes, came, connected.is_ready)
        while not found:
            waits()
            yield True
        return found[0]

    def _handled(self, frame: Frame) -> Iterator[object] | None:
        """Handle a frame, at once or once it may be. What is left to do of it, in steps."""
        held = self._connected.held
        if not held.waiting and (type(frame.message) in NEVER_HELD or not held.is_applying):
            return self._begun(frame)
        held.do(partial(self.handle_now, frame))
        return None

    def handle_now(self, frame: Frame) -> None:
        self.incoming.work = self._begun(frame)

    def _begun(self, frame: Frame) -> Iterator[object] | None:
        """Handle a frame; with many records: what may take long is done in steps before it is stored."""
        role, handler = HANDLERS[type(frame.message)]
        handle = partial(handler, getattr(self, role), frame, frame.message)
        if len(frame.records) < of_appends.LONG_BYTES:
            return handle()
        return self.appends.in_steps(frame, handle) or handle()

    def _refuse(self, frame: Frame, code: FailureCode, why: str) -> None:
        """Answer a frame like any request that fails."""
        if isinstance(frame.message, wire.Append | wire.Publish):
            self.appends.refuse(frame, code, why)
        elif frame.request_id:
            self._connected.answer(frame.request_id, wire.Failed(code, why))


_ROLES: dict[str, Handlers] = {
    "appends": of_appends.HANDLERS,
    "queues": of_queues.HANDLERS,
    "reads": of_reads.HANDLERS,
    "sessions": of_sessions.HANDLERS,
    "operators": of_operators.HANDLERS,
    "life": of_life.HANDLERS,
}
HANDLERS = {kind: (role, handler) for role, table in _ROLES.items() for kind, handler in table.items()}
"""By the kind of a message: its handler, and the attribute of Handling that it is a method of."""
