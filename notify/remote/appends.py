"""Appends to a store in another process: numbered, so that the store knows those that it has. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from notify.api import NO_LISTENER, GatewayListener, Placed
from store.errors import RecordTooLarge, RequestRefused
from store.records._records import RecordBatch
from store.wire import messages as wire
from store.wire.client.requests import Outcome, PendingRequest, PendingRequests
from store.wire.frames import Frame

BATCH_HEADER_BYTES = 40  # of the record in which the store puts the records of an Append
HEAD_ROOM_BYTES = 4_096  # of a frame, for what is not records


class RemoteAppends:
    """StoreAppends (notify.api): owner of the numbers of Appends, and of who is told where their records stand."""

    def __init__(self, requests: PendingRequests) -> None:
        self.listener: GatewayListener = NO_LISTENER
        self.mark = self.safe_mark = 0
        self.unstored_bytes = 0  # of Appends that are not answered
        self.most_frame_bytes = 1 << 20  # as the store said last: what is sent later must fit as well
        self._requests = requests
        self._ask = requests.ask
        self._placed: dict[int, Callable[[int], object]] = {}  # by sequence, who is told where the records stand

    def await_safe(self) -> None: ...  # the store hurries with each Append

    def append(self, batch: RecordBatch, placed: Placed | None = None) -> None:
        limit = self.most_frame_bytes - HEAD_ROOM_BYTES
        if batch.size <= limit:
            self._append(batch, 0, placed)
            return
        pieces = batch.split(limit)
        if (largest := max(piece.size for piece in pieces)) > limit:
            raise RecordTooLarge(largest, limit)
        first = 0
        for piece in pieces:
            self._append(piece, first, placed)
            first += piece.size

    def _append(self, piece: RecordBatch, first: int, placed: Placed | None) -> None:
        """Records that are `first` bytes after the beginning of their batch."""
        self.mark += 1
        self.unstored_bytes += piece.size
        if placed is not None:
            self._placed[self.mark] = partial(placed, first, piece.size)
        self._ask(wire.Append(self.mark), self._appended, bytes(piece))

    def _appended(self, answer: Outcome, frame: Frame) -> None:
        self.answered(self._requests.unanswered(frame.request_id), answer)

    def answered(self, request: PendingRequest, answer: Outcome) -> None:
        assert isinstance(request.message, wire.Append)
        sequence = request.message.sequence
        self.unstored_bytes -= len(request.records)
        placed = self._placed.pop(sequence, None) if self._placed else None
        if isinstance(answer, RequestRefused):
            self.safe_mark = sequence - 1
            self.listener.refused(sequence, answer)
        elif isinstance(answer, wire.Appended) and placed is not None:
            placed(answer.start + BATCH_HEADER_BYTES if answer.end else -1)
        self.safe_mark = sequence

    def take_over(self, sequence: int) -> None:
        """Go on after the Appends of another process: it made those up to this one, and all are answered."""
        self.mark = self.safe_mark = sequence

    def begin_anew(self, appended: int) -> int:
        """The store has given this gateway up, and has Appends up to `appended`. Returns the newest mark until now."""
        newest, self.mark = self.mark, appended
        self.safe_mark = 0
        self.unstored_bytes = 0
        self._placed.clear()
        return newest
