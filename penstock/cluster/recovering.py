"""What an operator does with a store that stopped: the partition is not the one that it has followed, or it is damaged.

The store copies the log of the one that leads, and keeps its own log if that has anything which the cluster's has not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from lightqueue.mending.checking import COPIES, CheckResult, Damage, check_own_folder
from penstock.cluster.copying import LeaderLog, connect_to_leader, other_stores
from penstock.cluster.errors import KafkaUnreachable, NotRecovered
from penstock.cluster.place import replicated_place
from penstock.cluster.topic import PartitionReader, ReplicatedTopic, TopicAdmin, check
from penstock.config.settings import Settings
from penstock.errors import PenstockError
from penstock.kafka_place import KafkaPlace
from store.errors import FrameDamaged, StoreError
from store.files.folder import LOG, DataFolder
from store.files.segment import READ_BYTES, segment_paths
from store.log.copied import COPYING, discard_copying, finish_copy
from store.log.mark_file import KnownMark, read_mark
from store.mending.taking import LogCopy
from store.replication.frames import decode_frame

KEPT: Final = "before-recover"
SHOWN: Final = 20


def recover(settings: Settings, name: str, gives_up_own: bool, say: Callable[[str], None]) -> None:
    """`name`: of this store in its cluster. `gives_up_own`: what only this store has is not to be in the cluster's log.

    `say`: a line for people. Raises PenstockError.
    """
    data, place = settings.store.data, replicated_place(settings)
    topic = check(TopicAdmin(place).describe(), place.topic, settings.store.accept_two_replicas)
    try:
        folder = DataFolder(data, settings.store.group_access)
        try:
            finish_copy(data)
            known = read_mark(data)
            if known is None:
                say(f"{data}: is of no cluster, so there is nothing to recover")
            elif fault := _fault(place, topic, known):
                say(f"{data}: {fault}")
                _copy(settings, name, topic, known, [], gives_up_own, say)
            elif damage := _damage(data):
                for each in damage[:SHOWN]:
                    say(f"{each.file}: {each.reason}")
                _copy(settings, name, topic, known, damage, gives_up_own, say)
            else:
                say(
                    f"{data}: topic {place.topic} is the one that this store has followed, and nothing is damaged, so "
                    "it can go on: start it"
                )
        finally:
            folder.close()
    except (StoreError, OSError) as error:
        raise PenstockError(str(error)) from None


def _damage(data: Path) -> list[Damage]:
    """Why a start copies another store's log, or would serve what is not right. Raises OSError."""
    damage = check_own_folder(data).damage
    return [each for each in damage if each.start_does == COPIES or each.verdict == CheckResult.LOSS]


def _fault(place: KafkaPlace, topic: ReplicatedTopic, known: KnownMark) -> str:
    """Why the store cannot follow the topic by itself; empty: it can. Raises KafkaUnreachable."""
    mark = known.mark
    if known.topic_id != topic.id:
        return f"topic {place.topic} has the id {topic.id}, and this store has followed the one with {known.topic_id}"
    if mark.offset < 0:
        return ""
    with closing(PartitionReader(place)) as reader:
        first, end = reader.bounds()
        if mark.offset >= end:
            return f"topic {place.topic} ends at offset {end}, and this store has accepted offset {mark.offset}"
        if mark.offset < first:
            return ""  # it copies what it lacks by itself
        message = reader.record(mark.offset)
    if message is None:
        raise KafkaUnreachable(place.topic, f"its record at offset {mark.offset} cannot be read")
    try:
        is_same = decode_frame(message.value() or b"").checksum == mark.checksum
    except FrameDamaged:
        is_same = False
    return "" if is_same else f"the record of topic {place.topic} at offset {mark.offset} is not what it has accepted"


def _copy(
    settings: Settings,
    name: str,
    topic: ReplicatedTopic,
    known: KnownMark,
    damage: Sequence[Damage],
    gives_up_own: bool,
    say: Callable[[str], None],
) -> None:
    """Damaged bytes are nothing that the other store would lack. A file that is not of this log is kept."""
    data, place = settings.store.data, replicated_place(settings)
    accepted = known.mark.accepted
    try:
        address = other_stores(place, settings.cluster.stores, name)
        store = connect_to_leader(settings, address)
    except PenstockError as error:
        raise NotRecovered(data, f"no store gives a copy ({error}), so this log may be the only one") from None
    with store:
        copy = LogCopy(data, LeaderLog(store))
        end = copy.take(topic.id).given.mark.accepted
    damaged = [(each.start, each.end) for each in damage if each.what == "log"]
    own = differs_at(data / LOG, data / COPYING / LOG, accepted, end, damaged)
    if own is not None and not gives_up_own:
        discard_copying(data)
        reason = f"from log_offset {own} to {accepted} it has what the log of {address.url}, up to {end}, has not"
        raise NotRecovered(data, reason)
    is_kept = own is not None or any(each.kind == "foreign" for each in damage)
    keep = f"{KEPT}-{time.strftime('%Y%m%d-%H%M%S')}" if is_kept else ""
    copy.commit(keep)
    finish_copy(data)
    say(f"{data}: has the log of {address.url} up to log_offset {end} now; start the store")
    if keep:
        say(f"{data / keep}: has the log from before, as a data folder; delete it when you do not need it any more")


def differs_at(own: Path, copy: Path, accepted: int, end: int, damaged: Sequence[tuple[int, int]] = ()) -> int | None:
    """log_offset from which on this store's log, up to `accepted`, has what the copy, up to `end`, has not.

    None: the copy has all of it, or has dropped it. `damaged` ranges of this store's log do not count. Raises OSError.
    """
    begin = min((int(path.stem) for path in segment_paths(copy)), default=0)
    for path in segment_paths(own):
        base = int(path.stem)
        stop = min(accepted, base + path.stat().st_size)
        theirs = copy / path.name
        if stop <= base:
            break
        if not theirs.exists() and base < begin:
            continue
        for start, to in _intact(base, stop, damaged):
            same = _same_bytes(path, theirs, start - base, min(to, end) - base) if theirs.exists() else start - base
            if base + same < to:
                return base + same
    return None


def _intact(start: int, end: int, damaged: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is left of a range without the damaged ones."""
    for first, last in sorted(damaged):
        if start < min(first, end):
            yield start, min(first, end)
        start = max(start, last)
    if start < end:
        yield start, end


def _same_bytes(one: Path, other: Path, start: int, end: int) -> int:
    """The position, from `start` up to `end`, up to which two files have the same bytes."""
    with one.open("rb") as a, other.open("rb") as b:
        a.seek(start)
        b.seek(start)
        for at in range(start, end, READ_BYTES):
            length = min(READ_BYTES, end - at)
            ours, theirs = a.read(length), b.read(length)
            if ours != theirs:
                pairs = zip(ours, theirs, strict=False)
                return at + next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(ours), len(theirs)))
    return max(start, end)
