"""What parts of the log hold, by samples that are spread evenly: records by kind, clients, topics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.console.store.connection import StoreConnection
from penstock.sdk.message import CLIENT_ID, TIMESTAMP, TOPIC
from store.records.record_bytes import walk
from store.records.records import RecordType
from store.wire import log_messages as of_log
from store.wire import messages as wire

PIECES = 32
PIECE_BYTES = 128 << 10
RECORD_TYPE = 3
MOST_NAMES = 20


@dataclass(slots=True)
class LogSample:
    """Of `read_bytes` that were read of the log from log_offset `start` to `stop`."""

    start: int
    stop: int
    read_bytes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    client_messages: Counter[str] = field(default_factory=Counter)
    client_bytes: Counter[str] = field(default_factory=Counter)
    topic_messages: Counter[str] = field(default_factory=Counter)
    topic_bytes: Counter[str] = field(default_factory=Counter)
    first_ms: int = 0
    last_ms: int = 0

    @property
    def factor(self) -> float:
        """By which a count of what was read is multiplied for the whole; 1: all was read."""
        return max(1.0, (self.stop - self.start) / self.read_bytes) if self.read_bytes else 1.0

    def top(self, messages: Counter[str], sizes: Counter[str]) -> list[tuple[str, float, float]]:
        """The names with most bytes: messages and bytes of each, of the whole."""
        return [
            (name, messages[name] * self.factor, most * self.factor) for name, most in sizes.most_common(MOST_NAMES)
        ]


async def since(connection: StoreConnection, time_ms: int) -> LogSample:
    """Of what was stored from a time (Unix, ms) on. Raises a ClientError."""
    start = 0
    while True:
        found, _ = await connection.request(of_log.SeekLog(0, time_ms, start), wire.Sought)
        start = found.log_offset
        if found.found:
            break
    segments, _ = await connection.request(of_log.Segments(start), of_log.SegmentsFound)
    return await between(connection, start, segments.log_end)


async def between(connection: StoreConnection, start: int, stop: int) -> LogSample:
    """Of a part of the log: all of it if it is small, else PIECES pieces. Raises a ClientError."""
    sample = LogSample(start, stop)
    if stop - start <= PIECES * PIECE_BYTES:
        at = start
        while at < stop:
            grown = await _piece(connection, sample, at, stop)
            if grown <= at:
                break
            at = grown
        return sample
    for number in range(PIECES):
        place = start + (stop - start - PIECE_BYTES) * number // (PIECES - 1)
        found, _ = await connection.request(of_log.SeekLog(place, 0, 0), wire.Sought)
        while not found.found:
            found, _ = await connection.request(of_log.SeekLog(place, 0, found.log_offset), wire.Sought)
        await _piece(connection, sample, found.log_offset, stop)
    return sample


async def _piece(connection: StoreConnection, sample: LogSample, at: int, stop: int) -> int:
    """Counts a piece; where the next one begins."""
    read, data = await connection.request(of_log.ReadLog(at, PIECE_BYTES), of_log.LogRead)
    if not data or read.start >= stop:
        return stop
    sample.read_bytes += len(data)
    clients, topics = connection.names.plain_client_id, connection.names.plain_topic
    for record in walk(data):
        kind = RecordType(int(record[RECORD_TYPE])).name.lower().replace("_", " ")
        sample.kinds[kind] += 1
        sample.first_ms = min(sample.first_ms or record[TIMESTAMP], record[TIMESTAMP])
        sample.last_ms = max(sample.last_ms, record[TIMESTAMP])
        if record[RECORD_TYPE] == RecordType.MESSAGE:
            payload_bytes = len(record[-1])
            client, topic = clients(record[CLIENT_ID].decode()), topics(record[TOPIC].decode())
            sample.client_messages[client] += 1
            sample.client_bytes[client] += payload_bytes
            sample.topic_messages[topic] += 1
            sample.topic_bytes[topic] += payload_bytes
    return read.start + len(data)
