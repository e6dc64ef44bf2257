"""What `penstock cluster status` says: the topic, who leads, how far each store is, what is wrong, and the remedy."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, Final

from penstock.cluster.errors import KafkaUnreachable, TopicUnfit
from penstock.cluster.place import replicated_place
from penstock.cluster.progress import ClusterProgress, StoreProgress
from penstock.cluster.topic import PartitionReader, TopicAdmin, check
from penstock.config.settings import Settings
from penstock.kafka_place import KafkaPlace
from store.errors import FrameDamaged
from store.replication.frames import decode_frame

SILENT_HEARTBEATS_S: Final = 2.0  # an idle leader sends a frame twice a second
FAR_BEHIND: Final = 10_000  # frames


def status(settings: Settings) -> dict[str, Any]:
    """Raises PenstockError."""
    place = replicated_place(settings)
    faults: list[str] = []
    try:
        check(TopicAdmin(place).describe(), place.topic, settings.store.accept_two_replicas)
    except TopicUnfit as error:
        faults.append(str(error))
    found: dict[str, Any] = {"topic": place.topic, **_partition(place, faults)}
    progress = ClusterProgress(place)
    names = sorted({*settings.cluster.stores, *progress.names()})
    stores = progress.of(names)
    found["stores"] = [_row(each, found["end"]) for each in stores]
    leaders = [each for each in stores if each.report is not None and each.report.is_leading]
    newest = max(leaders, key=lambda each: each.report.epoch if each.report is not None else 0, default=None)
    found["leader"] = newest.name if newest is not None else ""
    faults += _faults(found, settings.cluster.failover_s)
    found["faults"] = faults
    return found


def _partition(place: KafkaPlace, faults: list[str]) -> dict[str, Any]:
    """Where the partition begins and ends, and what its newest frame says."""
    with closing(PartitionReader(place)) as reader:
        first, end = reader.bounds()
        found: dict[str, Any] = {"first": first, "end": end, "epoch": 0, "log_end": 0, "silent_s": None}
        if end > first:
            message = reader.record(end - 1)
            if message is None:
                raise KafkaUnreachable(place.topic, "its newest record cannot be read")
            found["silent_s"] = round(max(0.0, time.time() - message.timestamp()[1] / 1000), 1)
            try:
                frame = decode_frame(message.value() or b"").frame
                found |= {"epoch": frame.epoch, "log_end": frame.end if not frame.kind else frame.base}
            except FrameDamaged as error:
                faults.append(f"offset {end - 1}: {error}; let only stores write to the topic")
    return found


def _row(store: StoreProgress, end: int) -> dict[str, Any]:
    report = store.report
    return {
        "store": store.name,
        "role": "" if report is None else "leader" if report.is_leading else "standby",
        "address": report.address if report is not None else "",
        "epoch": report.epoch if report is not None else 0,
        "log_offset": report.accepted if report is not None else 0,
        "frames_behind": end - 1 - store.offset if store.offset >= 0 else None,
    }


def _faults(found: dict[str, Any], failover_s: int) -> list[str]:
    faults = []
    if found["silent_s"] is None:
        faults.append("no store has led so far; start one with `penstock store`")
    elif found["silent_s"] > max(SILENT_HEARTBEATS_S, failover_s):
        faults.append(f"no store leads: the newest frame is {found['silent_s']} s old; start a store")
    for row in found["stores"]:
        if row["frames_behind"] is None:
            faults.append(f"{row['store']} has said nothing; start it, or take it out of cluster.stores")
        elif row["frames_behind"] > FAR_BEHIND:
            faults.append(f"{row['store']} is {row['frames_behind']} frames behind; see whether it runs")
    if len(found["stores"]) < 2:
        faults.append("no second store could take over; start one on another machine")
    return faults
