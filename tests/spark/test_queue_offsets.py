"""The column queue_offset, without Spark: it is what the store's own queues say, wherever a reader begins."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lightqueue.message_store import MessageStore
from penstock.columns import COLUMNS
from penstock.spark.errors import IndexUnreadable
from penstock.spark.folder import LogFolder
from penstock.spark.options import parse_options
from penstock.spark.ranges import LogRange
from penstock.spark.reading import rows
from store.files.folder import CHECKPOINT, INDEX
from store.files.segment import segment_paths
from tests.support.injuries import zero
from tests.support.stores import KEPT_BYTES, Stores, commit_log, crash_copy, fill, publish, run_upkeep

SCHEMA = pa.schema([(name, COLUMNS[name].type) for name in ("topic", "log_offset", "queue_offset")])
Found = dict[int, tuple[str, int | None]]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data")
    yield stores
    stores.close()


def read(data: Path, parts: int, **options: str) -> Found:
    """By log_offset: topic and queue_offset, read in so many partitions."""
    log = LogFolder(str(data))
    request = parse_options({"path": str(data), **options})
    cuts = log.split(log.base(), log.end(), parts)
    found = [row for cut in cuts for batch in rows(request, SCHEMA, LogRange(*cut)) for row in batch.to_pylist()]
    return {row["log_offset"]: (row["topic"], row["queue_offset"]) for row in found}


def as_the_store_says(store: MessageStore, topics: list[str]) -> Found:
    """The same, by the store's own queues."""
    found: Found = {}
    for topic in topics:
        queue = store.queues.topic_queue(topic.encode())
        start = store.queues.position_of(queue, store.log.first)
        for queue_offset in range(start, queue.next_offset):
            found[store.queues.log_offset_at(queue, queue_offset)] = (topic, queue_offset)
    return found


TOPICS = ["a/1", "a/2", "b", "filler"]


def work(store: MessageStore, round_: int) -> None:
    for i in range(40):
        publish(store, TOPICS[i % 3], b"%d" % i, retain=i % 7 == 0)
    fill(store, 1)
    publish(store, f"new/{round_}", b"x")


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_as_the_store_counts_while_it_runs_and_after_retention(stores: Stores, parts: int) -> None:
    store = stores(retention_bytes=KEPT_BYTES)
    data = store.settings.data
    topics = [*TOPICS, *(f"new/{round_}" for round_ in range(6))]
    for round_ in range(6):
        work(store, round_)
        if round_ % 2:
            store.write_index()
            store.index.flush()
        if round_ == 3:
            run_upkeep(store)
        assert read(data, parts) == as_the_store_says(store, topics)
    assert store.log.base > 0
    one = {offset: row for offset, row in as_the_store_says(store, topics).items() if row[0] == "b"}
    assert read(data, parts, topic="b") == one


def test_without_an_index(stores: Stores) -> None:
    store = stores(retention_bytes=KEPT_BYTES)
    data = store.settings.data
    work(store, 0)
    expected = as_the_store_says(store, [*TOPICS, "new/0"])
    stores.stop(store)
    (data / INDEX).rename(data / "away")
    assert read(data, 3) == expected, "all of the log is there to be counted"
    (data / "away").rename(data / INDEX)
    store = stores(retention_bytes=KEPT_BYTES)
    for round_ in range(1, 5):
        work(store, round_)
    run_upkeep(store)
    stores.stop(store)
    for name in (INDEX, CHECKPOINT):
        (data / name).rename(data / f"{name}-away")
    assert {queue_offset for _, queue_offset in read(data, 3).values()} == {None}
    (data / INDEX).mkdir()
    with pytest.raises(IndexUnreadable, match="leave queue_offset out"):
        read(data, 3)


def test_an_index_on_disk_that_stands_in_a_gap(stores: Stores, tmp_path: Path) -> None:
    """After a start over damage the index on the disk stands there until it is flushed again."""
    store = stores()
    work(store, 0)
    store.write_index()
    store.index.flush()
    at = store.index.applied_offset
    work(store, 1)
    commit_log(store).flusher.flush_now()
    killed = crash_copy(store.settings.data, tmp_path / "killed")
    segment = [path for path in segment_paths(killed / "log") if int(path.stem) < at][-1]
    zero(segment, at - int(segment.stem) - 24, 48)
    again = stores(killed)
    (loss,) = [each for each in commit_log(again).findings if each.is_loss]
    assert loss.start < at < loss.end
    found = read(killed, 1, failOnDataLoss="false")
    said = as_the_store_says(again, [*TOPICS, "new/0", "new/1"])
    assert found == {place: row for place, row in said.items() if not loss.start <= place < loss.end}
