"""Starts a store on the image of a power cut, and compares it with what clients had been told."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from loadtest.power.returning import come_back
from loadtest.power.traffic import FILTERS, GROUP, GROUP_FILTER, key_of
from loadtest.power.truth import Stored, Truth
from store.errors import StoreError
from store.log.commitlog import CommitLog
from store.records._records import RecordBatch
from store.records.records import Record, RecordFlag, RecordType, read_records
from store.recovery.quarantine import Finding
from store.recovery.running import RUNNING, boot_id
from store.settings import StoreSettings
from store.topics import matches

SHOWN = 3
READ_BYTES = 1 << 20
QUEUED = ("power/", "work/")  # topics whose messages are neither retained nor delayed
PROBE = b"probe probe 0 0 "
MANY = 1 << 20


@dataclass
class ImageVerdict:
    """The verdict on one image. `counts`: what was checked, by result."""

    complaints: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def complain(self, what: str, things: Iterable[object]) -> None:
        found = list(things)
        if found:
            shown = ", ".join(map(str, found[:SHOWN]))
            self.complaints.append(f"{len(found)} {what}: {shown}")


def _log(store: MessageStore) -> CommitLog:
    assert isinstance(store.log, CommitLog)
    return store.log


def store_settings(flat: dict[str, object], data: Path) -> StoreSettings:
    """The settings of the recorded store; retention has no effect in a judge."""
    own: dict[str, Any] = {name[6:]: value for name, value in flat.items() if name.startswith("store.")}
    return StoreSettings(data=data, **own)


class ImageJudge:
    """Judges images of one recording."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._is_sync = truth.account.flush == "sync"

    def judge(self, image: Path, event: int, certain: int, twice: bool) -> ImageVerdict:
        """Judge an image. `event`: when the power went. `certain`: log_offset up to which the log was synced. `twice`:
        start the store a second time.
        """
        verdict = ImageVerdict()
        settings = store_settings(self._truth.account.settings, image)
        _boot_anew(image / "log" / RUNNING)
        try:
            store = MessageStore(settings)
        except (StoreError, OSError) as error:
            verdict.complaints.append(f"it does not start: {error!r}")
            return verdict
        try:
            found = self._look(store, event, certain, verdict)
            if twice:
                batch = RecordBatch()
                batch.append(RecordType.MESSAGE, PROBE, topic=b"power/a")
                store.append(batch)
        finally:
            store.close()
        if twice:
            self._start_again(settings, found, verdict)
        if self._is_sync:
            self._have_clients_back(settings, event, verdict)
        return verdict

    def _have_clients_back(self, settings: StoreSettings, event: int, verdict: ImageVerdict) -> None:
        """Check that every client finds its session, and that what it had in flight comes once."""
        client_ids = [client_id for client_id, at in self._truth.connected.items() if at < event]
        flights = self._truth.flights_at(event)
        verdict.counts["clients that came back"] += len(client_ids)
        verdict.counts["of QoS 2 in flight"] += sum(map(len, flights.values()))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the loop of a gateway
                back = come_back(replace(settings, retention_bytes=None), client_ids, flights)
                gone, store = runner.run(back)
        except (StoreError, OSError) as error:
            verdict.complaints.append(f"its clients cannot come back: {error!r}")
            return
        try:
            verdict.complain("clients that are told that they have no session", gone)
            present = Counter(key_of(record.payload) for record in _messages(store).values())
            verdict.complain("of QoS 2 twice, once its publisher is back", _twice(present))
            mine = [flight.key for flying in flights.values() for flight in flying]
            verdict.complain("of QoS 2 lost though its publisher is back", (key for key in mine if not present[key]))
        finally:
            store.close()

    def _start_again(self, settings: StoreSettings, found: dict[int, Record], verdict: ImageVerdict) -> None:
        """Check that the next start finds the same messages, and those stored since."""
        try:
            store = MessageStore(settings)
        except (StoreError, OSError) as error:
            verdict.complaints.append(f"it does not start a second time: {error!r}")
            return
        try:
            again = _messages(store)
            keys = [key_of(record.payload) for offset, record in again.items() if offset not in found]
            verdict.complain("messages that the second start does not find", set(found) - set(again))
            if keys != [key_of(PROBE)]:
                verdict.complain("messages at the second start that are not what was stored", [keys])
            verdict.complain("findings of the second start", _log(store).findings)
        finally:
            store.close()

    def _look(self, store: MessageStore, event: int, certain: int, verdict: ImageVerdict) -> dict[int, Record]:
        found = _messages(store)
        verdict.counts["images"] += 1
        verdict.counts["messages"] += len(found)
        for finding in _log(store).findings:
            verdict.counts[f"findings: {finding.kind}"] += 1
        truth = self._truth
        verdict.complain(
            "messages that are not what was written there",
            (offset for offset, record in found.items() if not _is(record, truth.stored.get(offset))),
        )
        self._look_for_acked(store, found, event, certain, verdict)
        self._look_at_queues(store, found, verdict)
        self._look_at_state(store, found, event, verdict)
        return found

    def _look_for_acked(
        self, store: MessageStore, found: dict[int, Record], event: int, certain: int, verdict: ImageVerdict
    ) -> None:
        acked = self._truth.acked_before(event)
        verdict.counts["acknowledged"] += len(acked)
        begin = self._truth.begin(event)
        present = Counter(key_of(record.payload) for record in found.values())
        unsynced, silent, lost = [], [], []
        for key in acked:
            stored = self._truth.of.get(key)
            if stored is None:
                verdict.complaints.append(f"{key} was acknowledged, and is nowhere in the log")
                continue
            if all(each.whole > certain for each in stored):
                unsynced.append(key)
            if key in present or all(each.start < begin for each in stored):
                continue
            verdict.counts["lost"] += 1
            if self._is_sync or any(begin <= each.start and each.whole <= certain for each in stored):
                lost.append(key)
            elif any(_is_named(each, _log(store).findings) for each in stored):
                verdict.counts["lost, in a range that was named"] += 1
            elif all(each.start >= store.log.end or each.whole > certain for each in stored):
                verdict.counts["lost, behind the log's end"] += 1
                if not _log(store).power_cut_note:
                    silent.append(key)
            else:
                silent.append(key)
        verdict.complain("acknowledged before they were synced", unsynced if self._is_sync else ())
        verdict.complain("lost although they were acknowledged", lost)
        verdict.complain("lost silently", silent)
        verdict.complain("of QoS 2 twice", _twice(present))

    def _look_at_queues(self, store: MessageStore, found: dict[int, Record], verdict: ImageVerdict) -> None:
        """Check that the queues have each message once, in order."""
        by_topic: dict[bytes, list[int]] = {}
        for offset, record in found.items():
            if record.topic.decode().startswith(QUEUED):
                by_topic.setdefault(record.topic, []).append(offset)
        for topic, expected in by_topic.items():
            if _entries(store, store.queues.topic_queue(topic)) != expected:
                verdict.complain("queue that is not as the log says", [topic.decode()])
        for name in {name for filters in FILTERS.values() for name in filters}:
            queue = store.queues.stored(name)
            expected = sorted(
                o for topic, offsets in by_topic.items() if matches(name, topic.decode()) for o in offsets
            )
            if (_entries(store, queue) if queue else []) != expected:
                verdict.complain("filter's queue that is not as the log says", [name])

    def _look_at_state(self, store: MessageStore, found: dict[int, Record], event: int, verdict: ImageVerdict) -> None:
        kept: dict[bytes, int] = {}
        pending = {each.log_offset for each in store.delayed.page(0, 0, MANY)}
        waits: dict[str, list[int]] = {}
        for offset, record in found.items():
            if record.flags & RecordFlag.DELAYED:
                waits.setdefault(key_of(record.payload), []).append(offset)
            elif record.flags & RecordFlag.RETAIN:
                kept[record.topic] = offset
        dispatched = {key_of(record.payload) for record in found.values() if not record.flags & RecordFlag.DELAYED}
        verdict.complain(
            "retained messages that are not the newest",
            (topic.decode() for topic, offset in kept.items() if store.retained.get(topic) != offset),
        )
        verdict.complain(
            "delayed messages that nothing waits for",
            (key for key, offsets in waits.items() if key not in dispatched and not pending.intersection(offsets)),
        )
        verdict.counts["delayed"] += len(waits)
        if self._is_sync:
            self._look_at_clients(store, event, verdict)

    def _look_at_clients(self, store: MessageStore, event: int, verdict: ImageVerdict) -> None:
        if event >= self._truth.subscribed:
            for client_id, filters in FILTERS.items():
                session = store.sessions.get(client_id)
                if session is None or sorted(session.subscriptions) != sorted(filters):
                    verdict.complain("session without its subscriptions", [client_id])
        settled = [each for each in self._truth.settled_before(event) if each >= store.log.first]
        if not settled:
            return
        queue = store.queues.stored(GROUP_FILTER)
        state = next((each.state for each in store.groups if each.state.key == (GROUP, GROUP_FILTER)), None)
        if queue is None or state is None:
            verdict.complain("group that is gone", [GROUP])
            return
        places = {log_offset: place for place, log_offset in _places(store, queue)}
        verdict.counts["settled by a group"] += len(settled)
        verdict.complain(
            "messages that a group acknowledged, and would hand out again",
            (each for each in settled if places[each] >= state.positions[0] or places[each] in state.entries),
        )


def _boot_anew(path: Path) -> None:
    """Change the boot id in the image, as if the machine had been rebooted."""
    if path.exists():
        path.write_text(path.read_text().replace(boot_id(), "another-boot"))


def _is(record: Record, stored: Stored | None) -> bool:
    return stored is not None and (stored.key, stored.topic) == (key_of(record.payload), record.topic)


def _twice(present: Counter[str]) -> list[str]:
    """Messages of QoS 2 that are there more than once. Delayed ones are, once they were carried or dispatched."""
    return [key for key, times in present.items() if times > 1 and key.split(" ")[2] == "2" and "$delayed" not in key]


def _is_named(stored: Stored, findings: list[Finding]) -> bool:
    return any(finding.start < stored.end and stored.start < finding.end for finding in findings)


def _messages(store: MessageStore) -> dict[int, Record]:
    """The messages by log_offset, in order."""
    records = (record for _, piece in store.log.ranges(0, READ_BYTES) for record in read_records(piece))
    return {record.log_offset: record for record in records if record.type == RecordType.MESSAGE and record.payload}


def _entries(store: MessageStore, queue: Queue) -> list[int]:
    return [log_offset for _, log_offset in _places(store, queue)]


def _places(store: MessageStore, queue: Queue) -> list[tuple[int, int]]:
    """(queue_offset, log_offset) of all readable entries."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < queue.next_offset:
        records = store.read(queue, at, 1_000, READ_BYTES)
        if not len(records):
            break
        found += [(records.first + i, records.log_offset(i)) for i in range(len(records))]
        at = records.next
    return found


def clear(folder: Path) -> None:
    """Delete an image."""
    shutil.rmtree(folder, ignore_errors=True)
