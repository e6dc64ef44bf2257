"""The truth about a recording: what the server wrote to its log, and how far it was certain at a moment."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from loadtest.power.recording import Event
from loadtest.power.traffic import Account, Flight, FlightStep, key_of
from loadtest.power.volume import Folder, Volume, VolumeFile
from store.files.marks import decode_slot
from store.files.segment import SUFFIX
from store.mending.foresight import headers
from store.records.records import RecordType, read_records
from store.recovery.salvage import salvage

LOG = "log"


class Stored(NamedTuple):
    """A message in the log, bytes [start, end) as log_offsets."""

    key: str
    topic: bytes
    start: int
    end: int
    whole: int  # end of its append, which is valid as a whole or not at all


class Truth:
    """All that was ever appended, and what clients knew at each event."""

    def __init__(self, events: list[Event], account: Account) -> None:
        self.account = account
        self.begins: list[tuple[int, int]] = []  # (event, the log's beginning from then on)
        self.stored: dict[int, Stored] = {}  # by log_offset
        self.of: dict[str, list[Stored]] = {}  # by key: several if it was carried or dispatched
        ends = [event.ends for event in events]
        self.acked = sorted((_event_at(ends, acked.at), acked.key) for acked in account.acked)
        self.settled = sorted((_event_at(ends, at), log_offset) for log_offset, at in account.settled)
        self.subscribed = _event_at(ends, account.subscribed_at)
        self.connected = {client_id: _event_at(ends, at) for client_id, at in account.connected}
        self._flights = [(_event_at(ends, flight.at), flight) for flight in account.flights]
        self._read(events)

    def _read(self, events: list[Event]) -> None:
        """Put together the writes to each segment, whatever happened to them later."""
        names: dict[int, str] = {}
        logs: dict[str, bytearray] = {}
        for event in events:
            if event.kind == "o":
                names[event.file] = event.paths[0]
            if event.kind == "r":
                old, new = event.paths
                names |= dict.fromkeys((file for file, name in names.items() if name == old), new)
            if event.kind != "w":
                continue
            name = names[event.file]
            if name == f"{LOG}/marks":
                slot = decode_slot(event.data)
                if slot is not None and (not self.begins or slot.begin > self.begins[-1][1]):
                    self.begins.append((event.number, slot.begin))
            elif name.startswith(f"{LOG}/") and name.endswith(SUFFIX):
                data = logs.setdefault(name, bytearray())
                if len(data) < event.first + len(event.data):
                    data += bytes(event.first + len(event.data) - len(data))
                data[event.first : event.first + len(event.data)] = event.data
        for name, data in sorted(logs.items()):
            self._note_segment(int(name[len(LOG) + 1 : -len(SUFFIX)]), bytes(data))

    def _note_segment(self, base: int, data: bytes) -> None:
        for stored in messages(base, data):
            self.stored[stored.start] = stored
            self.of.setdefault(stored.key, []).append(stored)

    def begin(self, event: int) -> int:
        """The log's beginning, current or announced, at an event."""
        return max((begin for at, begin in self.begins if at <= event), default=0)

    def acked_before(self, event: int) -> list[str]:
        return [key for _, key in self.acked[: bisect_left(self.acked, (event, ""))]]

    def settled_before(self, event: int) -> list[int]:
        return [log_offset for _, log_offset in self.settled[: bisect_left(self.settled, (event, 0))]]

    def flights_at(self, event: int) -> dict[str, list[Flight]]:
        """By publisher: the newest step of each QoS 2 message that is not over, as it knew at an event."""
        found: dict[tuple[str, int], Flight] = {}
        for at, flight in self._flights:
            if at < event:
                found[flight.key.split(" ")[0], flight.packet_id] = flight
        flying: dict[str, list[Flight]] = {}
        for (publisher, _), flight in found.items():
            if flight.step != FlightStep.OVER:
                flying.setdefault(publisher, []).append(flight)
        return flying


def _event_at(ends: list[int], position: int) -> int:
    """The number of events in the first `position` bytes of the recording."""
    return bisect_left(ends, position + 1)


def messages(base: int, data: bytes) -> list[Stored]:
    """The messages in a segment's bytes; unreadable parts are skipped."""
    found: list[Stored] = []

    def note(log_offset: int, piece: bytes) -> None:
        records = list(read_records(memoryview(piece)))
        following = [record.log_offset for record in records[1:]] + [log_offset + len(piece)]
        appends = [at + length for at, length, _ in headers(log_offset, piece)]
        for record, end in zip(records, following, strict=True):
            if record.type == RecordType.MESSAGE and record.payload:
                whole = appends[bisect_right(appends, record.log_offset)]
                found.append(Stored(key_of(record.payload), record.topic, record.log_offset, end, whole))

    fd = os.memfd_create("segment")
    try:
        os.write(fd, data)
        salvage(fd, base, None, None, note)
    finally:
        os.close(fd)
    return found


def certain_until(volume: Volume) -> int:
    """log_offset before which every byte was synced: no power cut may take it."""
    folder = volume.root.names.get(LOG)
    certain = 0
    if not isinstance(folder, Folder):
        return 0
    for name, file in sorted(folder.names.items()):
        if not name.endswith(SUFFIX) or not isinstance(file, VolumeFile):
            continue
        base = int(name[: -len(SUFFIX)])
        writes = [change.at for change in file.pending if change.data is not None]
        if writes:
            return max(certain, base + min(writes))
        certain = base + ((len(file.durable.rstrip(b"\0")) + 7) & ~7)  # records are padded with zeros to 8 bytes
    return certain
