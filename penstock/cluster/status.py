"""What `penstock cluster status` says: the topic, who leads, how far each store is, what is wrong, and the remedy."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, Final

from penstock.cluster.errors import KafkaUnreachable, TopicUnfit
from penstock.cluster.place import replicated_place
from penstock.cluster.progress import ClusterProgress, StoreProgress, StoreReport
from penstock.cluster.topic import PartitionReader, TopicAdmin, check
from penstock.config.settings import Settings
from penstock.kafka_place import KafkaPlace
from store.errors import FrameDamaged
from store.replication.frames import decode_frame

SILENT_HEARTBEATS_S: Final = 2.0  # an idle leader sends a frame twice a second
FAR_BEHIND: Final = 10_000  # frames
SILENT_STORE_S: Final = 30.0  # it says how far it is every 5 s
UNKNOWN: Final = StoreReport("", False, 0, 0)


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
    found["stores"] = [_row(each, found["end"], time.time()) for each in stores]
    leaders = [each for each in stores if each.report is not None and each.report.is_leading]
    newest = max(leaders, key=lambda each: each.report.epoch if each.report is not None else 0, default=None)
    found["leader"] = newest.name if newest is not None else ""
    for row in found["stores"]:
        if row["role"] == "leader" and row["store"] != found["leader"]:
            row["role"] = "led before"
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


def _row(store: StoreProgress, end: int, now_s: float) -> dict[str, Any]:
    report = store.report or UNKNOWN
    is_known = store.offset >= 0 and not report.is_copying
    return {
        "store": store.name,
        "role": _role(store.report),
        "address": report.address,
        "epoch": report.epoch,
        "log_offset": report.accepted,
        "frames_behind": end - 1 - store.offset if is_known else None,
        "said_s_ago": round(max(0.0, now_s - report.said_s)) if report.said_s else None,
        "copying": {
            "from": report.copies_from,
            "done_bytes": report.copied_bytes,
            "of_bytes": report.copies_bytes,
        }
        if report.is_copying
        else None,
    }


def _role(report: StoreReport | None) -> str:
    if report is None:
        return ""
    return "copies" if report.is_copying else "leader" if report.is_leading else "standby"


def _faults(found: dict[str, Any], failover_s: int) -> list[str]:
    faults = []
    if found["silent_s"] is None:
        faults.append("no store has led so far; start one with `penstock store`")
    elif found["silent_s"] > max(SILENT_HEARTBEATS_S, failover_s):
        faults.append(f"no store leads: the newest frame is {found['silent_s']} s old; start a store")
    for row in found["stores"]:
        if row["frames_behind"] is None and row["copying"] is None:
            faults.append(f"{row['store']} has said nothing; start it, or take it out of cluster.stores")
        elif row["said_s_ago"] is not None and row["said_s_ago"] > SILENT_STORE_S:
            faults.append(f"{row['store']} has said nothing for {row['said_s_ago']} s; see whether it runs")
        elif row["copying"] is not None:
            faults += _faults_of_copy(row, any(each["role"] == "leader" for each in found["stores"]))
        elif row["frames_behind"] > FAR_BEHIND:
            faults.append(f"{row['store']} is {row['frames_behind']} frames behind; see whether it runs")
    if len(found["stores"]) < 2:
        faults.append("no second store could take over; start one on another machine")
    return faults


def _faults_of_copy(row: dict[str, Any], is_led: bool) -> list[str]:
    if row["copying"]["from"]:
        return []
    name = row["store"]
    if not is_led:
        return [f"{name} has nothing to copy from: start a store that has the log"]
    return [f"{name} does not get the log of another store; its log says why (wire.operator_token, certificates)"]
