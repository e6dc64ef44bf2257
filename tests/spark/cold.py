"""A data folder whose log retention has cut, and the table of the tier that has what it dropped; in this process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.spark.batch import BatchReader
from penstock.spark.folder import LogFolder
from penstock.spark.source import PenstockSource
from penstock.spark.stream import StreamReader
from penstock.tier.compaction import Compactor, MergeRules
from penstock.tier.files import index_of
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TierTable, WrittenLog
from store.files.segment import HEADER_BYTES, segment_paths
from store.records._records import RecordBatch
from store.records.compression import compressed
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute
from tests.support.stores import Stores
from tests.tier.places import TablePlace

PROPERTIES = (
    b"",
    b"",
    b"\x03\x00\x04json\x08\x00\x03r/1\x09\x00\x02\x00\xff",
    b"\x26\x00\x01a\x00\x01b\x26\x00\x01a\x00\x00",
)
TOPICS = [*(f"line/{n}/temp" for n in range(30)), "line", "plant/1", "$dead/g/t", "/", "z"]
TOPICS += [f"$ns:acme/line/{n}" for n in range(5)] + ["$ns:acme$dead/g/t", "$ns:other/a"]
KB = 1 << 10
RULES = MergeRules(
    growth=3,
    full_bytes=400 * KB,
    most_bytes=800 * KB,
    full_log_bytes=200 * KB,
    most_log_bytes=800 * KB,
    sorted_log_bytes=64 * KB,
    group_bytes=4 * KB,
    memory_bytes=64 * KB,
)
Row = dict[str, Any]


def messages(chance: random.Random, count: int) -> RecordBatch:
    """All kinds of them, some of which are no history."""
    batch = RecordBatch()
    for _ in range(count):
        topic = chance.choice(TOPICS) if chance.random() < 0.99 else "rare"
        payload = chance.randbytes(chance.choice((0, 20, 200)))
        flags = chance.choice((0, 1, 1, 2, 1 | RecordFlag.RETAIN, RecordFlag.LIVE_ONLY))
        if chance.random() < 0.1:
            payload, flags = compressed(bytes(2000) + payload, 3), flags | RecordFlag.COMPRESSED
        key = encode_attribute(Attribute.KEY, b"k%d" % chance.randrange(9)) if chance.random() < 0.3 else b""
        client = chance.choice((b"", b"d1", b"$ns:acme/d2", b"d3"))
        batch.append(
            RecordType.MESSAGE,
            payload,
            topic=topic.encode(),
            client_id=client,
            attributes=key,
            properties=chance.choice(PROPERTIES),
            flags=flags,
        )
    return batch


def committed(data: Path, place: TablePlace) -> TierTable:
    """A table that has the log of a folder so far, by a commit for each two segments."""
    log = LogFolder(str(data))
    end = log.end()
    table = TierTable.open(ObjectFolder(place.url, place.options), WrittenLog(log.identity(), HEADER_BYTES, end))
    segments = [each for each in log.segments() if (each.end or end) > table.end]
    for number in range(0, len(segments), 2):
        writer = table.begin()
        for segment in segments[number : number + 2]:
            if writer.end < segment.first:
                writer.skip(segment.first)
            for piece in log.pieces(writer.end, segment.end or end):
                writer.add(piece.data.tobytes(), piece.log_offset)
        table.commit(writer.finish())
    return table


class ColdLog:
    """A folder with small segments, and a table. What the log had is known before retention drops it."""

    def __init__(self, folder: Path, place: TablePlace, seed: int) -> None:
        self.data, self.place = folder / "data", place
        self._chance = random.Random(seed)
        self._stores = Stores(self.data)
        self.table: TierTable | None = None

    def publish(self, batches: int) -> None:
        store = self._stores()
        for _ in range(batches):
            store.append(messages(self._chance, self._chance.randrange(1, 60)))
        self._stores.stop(store)

    def commit(self) -> None:
        """Have the table have the log so far."""
        self.table = committed(self.data, self.place)

    def merge(self) -> None:
        """Merge the table's files, and delete those that were merged, as the tier does after some hours."""
        assert self.table is not None
        old = self.table.files()
        merging = Compactor(ObjectFolder(self.place.url, self.place.options), self.table, RULES)
        while merging.step():
            pass
        left = {file.path for file in self.table.files()}
        gone = [file.path for file in old if file.path not in left]
        assert gone
        ObjectFolder(self.place.url, self.place.options).delete(
            [name for path in gone for name in (path, index_of(path))]
        )

    def drop(self, share: float) -> int:
        """Let retention drop so much of the log's files. Returns where the log begins."""
        paths = segment_paths(self.data / "log")
        for path in paths[: int(len(paths) * share)]:
            path.unlink()
        return LogFolder(str(self.data)).base()

    # --- as Spark reads it

    def source(self, options: Mapping[str, object]) -> PenstockSource:
        given = {name: str(value) for name, value in options.items()}
        return PenstockSource({"path": str(self.data), **given})  # type: ignore[arg-type]

    def batch(self, **options: object) -> BatchReader:
        source = self.source({"tier": self.place.url, **options})
        return source.reader(source.schema())

    def stream(self, **options: object) -> StreamReader:
        source = self.source({"tier": self.place.url, "startingOffsets": "earliest", **options})
        return source.streamReader(source.schema())

    def read(self, **options: object) -> list[Row]:
        """The rows of a batch, by log_offset."""
        reader = self.batch(**options)
        return rows_of(each for part in reader.partitions() for each in reader.read(part))

    def in_log(self, **options: object) -> list[Row]:
        """The same without the tier."""
        source = self.source(options)
        reader = source.reader(source.schema())
        return rows_of(each for part in reader.partitions() for each in reader.read(part))

    def close(self) -> None:
        self._stores.close()


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    found: list[Row] = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: int(row["log_offset"]))


def read_parts(reader: BatchReader | StreamReader, parts: list[InputPartition]) -> list[Row]:
    return rows_of(batch for part in parts for batch in reader.read(part))
