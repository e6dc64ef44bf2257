"""How far the queues are counted after a data file: by its index, or by its rows if the index cannot be read."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

import pyarrow as pa

from penstock.tier.data_files import DataFile, decoding, read_footer, read_row_group
from penstock.tier.errors import ObjectMissing
from penstock.tier.files import index_of, read_index
from penstock.tier.objects import ObjectFolder
from store.namespaces import Namespace

log = logging.getLogger("penstock.tier")

_LEVEL: Final = ("level", "first_queue_offset", "count")
Counts = tuple[list[bytes], list[int]]
"""Queues, and the queue_offset after the last message of each."""


def counts_of(objects: ObjectFolder, file: DataFile, before: Callable[[bytes], int]) -> Iterator[Counts]:
    """Of the queues with messages in a file, in the order of the log. `before`: how far a queue is counted before it.

    Raises TierError.
    """
    name = index_of(file.path)
    try:
        data = objects.get(name)
        with decoding(objects, name):
            counts = list(_by_index(read_index(data)))
    except ObjectMissing as error:
        log.warning("%s; its messages are counted in %s, reads of them want the index", error, file.path)
        counts = [_by_rows(objects, file, before)]
    yield from counts


def _by_index(index: Iterable[Mapping[str, pa.Array]]) -> Iterator[Counts]:
    for _, groups in groupby(index, lambda group: (group["start"][0].as_py(), group["end"][0].as_py())):
        levels: dict[bytes, int] = {}
        for group in groups:
            topics, of_levels = group["topics"].values, group["levels"].values
            nexts = topics.field("first_queue_offset").to_numpy() + topics.field("count").to_numpy()
            yield topics.field("topic").to_pylist(), nexts.tolist()
            names, firsts, counts = (of_levels.field(name).to_pylist() for name in _LEVEL)
            for level, first, count in zip(names, firsts, counts, strict=True):
                levels[level] = levels.get(level, first) + count
        yield [level + b"/#" for level in levels], list(levels.values())


def _by_rows(objects: ObjectFolder, file: DataFile, before: Callable[[bytes], int]) -> Counts:
    """A level's numbers are in the index alone: here they go on where they were before the file."""
    found: dict[bytes, int] = {}
    footer = read_footer(objects, file)
    for group in range(footer.num_row_groups):
        rows = read_row_group(objects, file, footer, group, ["namespace", "topic", "queue_offset"])
        topics = rows.group_by(["namespace", "topic"]).aggregate([("queue_offset", "max"), ("queue_offset", "count")])
        for namespace, plain, last, count in zip(*(column.to_pylist() for column in topics.columns), strict=True):
            topic = Namespace(namespace).topic(plain).encode()
            level = topic.partition(b"/")[0] + b"/#"
            found[topic] = max(found.get(topic, 0), last + 1)
            found[level] = (found[level] if level in found else before(level)) + count
    return list(found), list(found.values())
