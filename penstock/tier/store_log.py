"""The log of a running store, as the dispatcher reads it over the wire: held by name, up to what is on the disk."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from notify.links.address import StoreAddress
from penstock.errors import PenstockError
from penstock.store_client import StoreClient
from store.state.changes import WhenBehind
from store.wire.handshake import TABLE_VERSION
from store.wire.log_messages import (
    MOST_TOPICS,
    HoldLog,
    LogHeld,
    LogRead,
    QueueOffsets,
    QueueOffsetsFound,
    ReadLog,
    SeekLog,
    Topics,
    TopicsFound,
)
from store.wire.messages import Role, Sought

PIECE_BYTES: Final = 1 << 20  # of the log in one answer: some milliseconds of the store's loop

IDLE_S: Final = 3_600.0
"""The connection stays while the storage is waited for, which may try again for minutes."""


class ReadPiece(NamedTuple):
    """Whole records from `log_offset` on; none: that is all that is on the disk. The log begins at `base`."""

    log_offset: int
    data: memoryview
    base: int
    on_disk: int


class HeldLog(NamedTuple):
    """A reader of the log says how far it is under this name; see HoldLog."""

    name: str
    most_behind_bytes: int = 0
    when_behind: WhenBehind = "drop"


class StoreLog:
    """A connection to the store. Every method raises PenstockError, in one line; ConnectionFailed: connect again."""

    def __init__(
        self, address: StoreAddress, token: str, tls: ssl.SSLContext | None, role: Role, held: HeldLog
    ) -> None:
        self._held = held
        self._store = StoreClient(address, token, tls, role, IDLE_S)
        if self._store.version < TABLE_VERSION:
            self._store.close()
            raise PenstockError(f"{address.url}: the store is too old for a tier; upgrade it first")
        self.identity = self._store.log_identity.hex()
        if not self.identity:
            self._store.close()
            raise PenstockError(f"{address.url}: the store does not say which log it has; upgrade it first")

    def close(self) -> None:
        self._store.close()

    def hold(self, log_offset: int | None = None) -> LogHeld:
        """Say that all before `log_offset` is done with; None: ask where this reader stands."""
        held = self._held
        return self._store.call(HoldLog(held.name, log_offset, held.most_behind_bytes, held.when_behind), LogHeld)

    def read(self, start: int) -> ReadPiece:
        answer, records = self._store.ask(ReadLog(start, PIECE_BYTES, on_disk=True), LogRead)
        return ReadPiece(answer.start, records, answer.log_base, answer.on_disk)

    def record_from(self, log_offset: int) -> int:
        """log_offset of the first record at or after a place; the log's end if there is none."""
        sought = Sought(0, False)
        while not sought.found:
            sought = self._store.call(SeekLog(log_offset, 0, sought.log_offset), Sought)
        return sought.log_offset

    def counted_before(self, log_offset: int) -> Iterator[tuple[bytes, int]]:
        """Queues with messages before a place, and how many of them: of the topics that are kept."""
        levels: Counter[str] = Counter()
        for topics in self._topics():
            request = QueueOffsets(log_offset, topics)
            for topic, number in zip(topics, self._store.call(request, QueueOffsetsFound).queue_offsets, strict=True):
                if number:
                    levels[topic.partition("/")[0]] += number
                    yield topic.encode(), number
        for level, number in levels.items():
            yield f"{level}/#".encode(), number

    def _topics(self) -> Iterator[list[str]]:
        for topic_filter in ("#", "$dead/#"):
            after = ""
            while True:
                found = self._store.call(Topics(topic_filter, after), TopicsFound)
                for at in range(0, len(found.topics), MOST_TOPICS):
                    yield found.topics[at : at + MOST_TOPICS]
                if not found.next:
                    break
                after = found.next
