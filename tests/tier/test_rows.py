"""The rows of any log are those of a plain reading, and each piece of a log that is too large for memory is cut."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import columns
from penstock.columns import Messages
from penstock.tier.counters import MOST_RECENT, QueueCounters
from penstock.tier.rows import RowGroup, key_hashes, restored_client_id, row_groups
from store.namespaces import Namespace
from store.records._records import RecordBatch
from store.records.compression import compressed
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute, read_records
from tests.tier.logs import NOON_MS, START, fnv1a, plain_rows, stamped

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), max_size=12)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=12)
prefixes = st.sampled_from(["", "", "$ns:acme/", "$ns:acme$", "$ns:b/", "$ns:", "$ns:UPPER/", "$"])
topics = st.builds("{}{}".format, prefixes, names) | st.sampled_from(["a", "a/b", "a/b/c", "b"])
client_ids = st.builds("{}{}".format, prefixes, texts) | st.just("")
keys = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
tags = st.none() | st.just("C")
flags = st.sampled_from(
    [0, 1, 2, 5, RecordFlag.LIVE_ONLY, RecordFlag.CARRIED | 4, RecordFlag.DELAYED, RecordFlag.EXPIRES]
)
payloads = st.binary(max_size=40).map(lambda data: (data, 0))
frames = st.binary(min_size=1, max_size=40).map(lambda data: (compressed(data, 3), RecordFlag.COMPRESSED))
broken = st.just((b"no frame", RecordFlag.COMPRESSED))
messages = st.tuples(topics, client_ids, keys, tags, flags, payloads | frames | broken, st.binary(max_size=9))
records = st.none() | messages
appends = st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.lists(records, min_size=1, max_size=8)), max_size=6)


def piece(log_offset: int, atomic: bool, time_ms: int, contents: list[Any]) -> bytes:
    batch = RecordBatch()
    if atomic:
        batch.begin_atomic()
    for each in contents:
        if each is None:
            batch.append(RecordType.PEER_GONE, b"\x91\xa1x")
            continue
        topic, client_id, key, tag, flags, (payload, compressed_flag), properties = each
        attributes = encode_attribute(Attribute.PACKET_ID, b"\5\0")
        attributes += encode_attribute(Attribute.KEY, key.encode()) if key is not None else b""
        attributes += encode_attribute(Attribute.TAG, tag.encode()) if tag is not None else b""
        batch.append(
            RecordType.MESSAGE,
            payload,
            topic=topic.encode(),
            client_id=client_id.encode(),
            attributes=attributes if key is not None or tag is not None else b"",
            properties=properties,
            flags=flags | compressed_flag,
        )
    if atomic:
        batch.end_atomic()
    return stamped(batch, log_offset, time_ms)


def groups(log: list[tuple[int, bytes]], counters: QueueCounters | None = None) -> list[RowGroup]:
    data = b"".join(data for _, data in log)
    found = Messages.find(np.frombuffer(data, np.uint8), log[0][0])
    counters = counters or QueueCounters()
    return list(row_groups(found, log[0][0] + len(data), counters)) if len(found) else []


def log_of(contents: list[Any]) -> list[tuple[int, bytes]]:
    log, at = [], START
    for atomic, hours, records in contents:
        log.append((at, piece(at, atomic, NOON_MS + hours * 3_600_000, records)))
        at += len(log[-1][1])
    return log


@given(appends)
def test_the_rows_are_those_of_a_plain_reading(contents: list[Any]) -> None:
    log = log_of(contents)
    if not log:
        return
    found = groups(log)
    rows = [row for group in found for row in group.rows.to_pylist()]
    expected = [{name: value for name, value in row.items() if name != "day"} for row in plain_rows(log)]
    assert sorted(rows, key=lambda row: row["log_offset"]) == expected
    at = START
    for group in found:
        assert group.start == at
        at = group.end
        assert group.key_hashes.tolist() == sorted(
            {fnv1a(row["key"].encode()) for row in group.rows.to_pylist() if row["key"]}
        )
    if found:
        assert at == log[-1][0] + len(log[-1][1])


@given(appends)
def test_names_are_restored_as_they_are_in_the_log(contents: list[Any]) -> None:
    log = log_of(contents)
    stored = {
        record.log_offset: (record.topic.decode(), record.client_id.decode())
        for _, data in log
        for record in read_records(memoryview(data))
        if record.type == RecordType.MESSAGE
    }
    for row in (row for group in (groups(log) if log else []) for row in group.rows.to_pylist()):
        namespace = row["namespace"]
        restored = Namespace(namespace).topic(row["topic"]), restored_client_id(namespace, row["client_id"])
        assert restored == stored[row["log_offset"]]


def test_payloads_that_are_large_once_decompressed_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_PLAIN_BYTES", 1000)
    contents = [(f"t{n}", "", None, None, 0, (compressed(b"0" * 400, 3), RecordFlag.COMPRESSED), b"") for n in range(9)]
    log = log_of([(False, 0, contents)])
    found = groups(log)
    assert [len(group.rows) for group in found] == [2, 2, 2, 2, 1]
    assert [group.start for group in found[1:]] == [group.end for group in found[:-1]]


@given(st.lists(st.tuples(st.lists(st.sampled_from("abcdefgh"), unique=True), st.booleans(), st.booleans())))
def test_counters_are_those_of_a_dict(steps: list[tuple[list[str], bool, bool]]) -> None:
    counters, model = QueueCounters(), dict[bytes, int]()
    for taken, counts, starts_anew in steps:
        queues = [name.encode() for name in taken]
        assert counters.take(queues, [2] * len(queues)) == [model.get(queue, 0) for queue in queues]
        if counts:
            counters.commit()
            model |= {queue: model.get(queue, 0) + 2 for queue in queues}
        else:
            counters.forget()
        if starts_anew:
            counters = QueueCounters.load(counters.snapshot())
    known = [bytes((letter,)) for letter in b"abcdefgh"]
    assert counters.take(known, [0] * 8) == [model.get(queue, 0) for queue in known]


def test_many_queues_take_little_memory() -> None:
    counters = QueueCounters()
    for part in range(3):
        queues = [b"line/%d" % number for number in range(part * MOST_RECENT, (part + 1) * MOST_RECENT + 1)]
        counters.take(queues, [1] * len(queues))
        counters.commit()
    assert len(counters) == 3 * MOST_RECENT + 1
    assert len(counters.snapshot()) < 25 * len(counters) + 2000
    assert counters.take([b"line/7", b"line/%d" % MOST_RECENT, b"no"], [1, 1, 1]) == [1, 2, 0]


def test_hashes_of_long_keys() -> None:
    contents = [("t", "", "k" * n, None, 0, (b"", 0), b"") for n in (1, 7, 1024, 7)]
    ((_, data),) = log_of([(False, 0, contents)])
    found = Messages.find(np.frombuffer(data, np.uint8), START)
    keys = found.key_parts
    assert keys is not None
    assert key_hashes(found.data, keys.starts, keys.lengths).tolist() == sorted(fnv1a(b"k" * n) for n in (1, 7, 1024))
