"""The message store in this process, as a gateway sees it: every answer comes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from gateway.store_api import Found, RetainedMessage, RetainedPage
from lightqueue._queues import Queue, read_at
from lightqueue.errors import NoSuchPosition
from lightqueue.following import Followed, follow, locate
from lightqueue.message_store import MessageStore
from lightqueue.retained_search import find_retained
from store._records import RecordBatch, Records
from store.sessions import SessionState

RETAINED_PER_PAGE = 1_000


class LocalStore:
    """A Store (gateway.store_api) over a MessageStore."""

    def __init__(self, messages: MessageStore) -> None:
        self.messages: MessageStore | None = messages
        self._messages = messages
        self.patience_s = messages.settings.flush_timeout_ms / 1000
        has_live_only = bool(messages.settings.live_only)
        self.is_live_only: Callable[[bytes], bool] | None = messages.queues.is_live_only if has_live_only else None
        messages.absent.begin()  # who was connected when the last process died is not any more

    # --- the way in

    def append(self, batch: RecordBatch) -> None:
        self._messages.append(batch)

    @property
    def end(self) -> int:
        return self._messages.end

    @property
    def safe(self) -> int:
        return self._messages.safe

    mark = end
    safe_mark = safe

    # --- sessions

    def claim(self, client_id: str, clean_start: bool, then: Callable[[SessionState | None], None]) -> None:
        then(self._messages.absent.claim(client_id, clean_start))

    def release(self, client_id: str) -> None:
        pass  # the log says so, and there is nobody else to tell

    # --- following queues

    def take_grown(self) -> list[Queue]:
        return self._messages.take_grown()

    def follow(
        self, topic_filter: str, start: int, history: bool, spills: bool, then: Callable[[list[Followed]], None]
    ) -> None:
        then(follow(self._messages, topic_filter, start, history, spills))

    def unfollow(self, queue: Queue) -> None:
        self._messages.queues.unwatch(queue)

    def locate(self, topic_filter: str, where: str, then: Callable[[int | None], None]) -> None:
        try:
            position: int | None = locate(self._messages, topic_filter, where)
        except NoSuchPosition:
            position = None
        then(position)

    def needed_from(self, floors: Iterable[tuple[Queue, int]]) -> None:
        for queue, floor in floors:
            queue.floor = floor

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records:
        return self._messages.read(queue, start, max_records, max_bytes)

    def read_at(self, log_offsets: list[int], max_bytes: int, then: Callable[[], None]) -> Found:
        found: Found = {}
        for log_offset in log_offsets:
            try:
                found[log_offset] = read_at(self._messages.log.memory, [log_offset]), 0
            except LookupError:
                found[log_offset] = None
        return found

    def retained(self, topic_filter: str, after: str | None, then: Callable[[RetainedPage], None]) -> None:
        found, after = find_retained(self._messages.retained, topic_filter, after, RETAINED_PER_PAGE)
        messages = []
        for log_offset in found:
            with suppress(LookupError):
                record = self._messages.record(log_offset)
                messages.append(RetainedMessage(log_offset, record.qos, record.client_id))
        then(RetainedPage(messages, after))

    # --- several times a second

    def tick(self) -> bool:
        return bool(self._messages.tick())

    def fault(self) -> str:
        return str(self._messages.log.fault() or "")
