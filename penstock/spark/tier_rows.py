"""Rows of the tier's table as the columns of Spark's rows: by names of the log, as penstock/columns.py has them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.columns import COLUMNS, ColumnParts, Messages
from penstock.tier.rows import restored_client_id
from store.namespaces import Namespace
from store.records.publish_properties import PUBLISH_PROPERTIES
from store.records.records import RecordFlag

_TOPIC: Final = ("namespace", "topic")
_STORED_AS: Final[dict[str, tuple[str, ...]]] = {
    "topic": _TOPIC,
    "queue": _TOPIC,
    "qos": ("flags",),
    "retain": ("flags",),
    "client_id": ("namespace", "client_id"),
    **{each.column: ("properties",) for each in PUBLISH_PROPERTIES if each.column},
}
AS_DICTIONARY: Final = ["namespace", "topic", "client_id"]


def stored_columns(names: Collection[str], by_topic: bool) -> list[str]:
    """The table's columns that these are made of; `by_topic`: rows are chosen by their topics."""
    found = {each for name in names for each in _STORED_AS.get(name, (name,))}
    return sorted({*found, "log_offset", *(_TOPIC if by_topic else ())})


class TierRows:
    """Rows of one row group."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    @property
    def log_offsets(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._one("log_offset").to_numpy()
        return found

    def where(self, chosen: NDArray[np.bool_]) -> TierRows:
        return self if chosen.all() else TierRows(self._rows.filter(pa.array(chosen)).combine_chunks())

    def of_topics(self, is_wanted: Callable[[bytes], bool]) -> TierRows:
        wanted = np.fromiter((is_wanted(each.encode()) for each in self._topics.dictionary.to_pylist()), np.bool_)
        return self.where(wanted[self._topics.indices.to_numpy()])

    def record_batch(self, schema: pa.Schema, first: int, behind: int) -> pa.RecordBatch:
        """Some of the rows, with the columns of a schema, whose names are in COLUMNS."""
        part = TierRows(self._rows.slice(first, behind - first).combine_chunks())
        return pa.RecordBatch.from_arrays([part._column(name) for name in schema.names], schema=schema)

    def _column(self, name: str) -> pa.Array:
        if name in ("topic", "queue"):
            return self._topics.dictionary_decode()
        if name == "client_id":
            return _joined(self._one("namespace"), self._one("client_id"), restored_client_id).dictionary_decode()
        if name == "qos":
            return pc.bit_wise_and(self._one("flags"), pa.scalar(RecordFlag.QOS_MASK, pa.int16())).cast(pa.int32())
        if name == "retain":
            return pa.array(self._one("flags").to_numpy() & RecordFlag.RETAIN != 0)
        if "properties" in _STORED_AS.get(name, ()):
            return self._messages.column(name)
        return self._one(name).cast(COLUMNS[name].type)

    def _one(self, name: str) -> pa.Array:
        column = self._rows.column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    @cached_property
    def _topics(self) -> pa.DictionaryArray:
        """As they are in the log."""
        return _joined(self._one("namespace"), self._one("topic"), lambda space, topic: Namespace(space).topic(topic))

    @cached_property
    def _messages(self) -> Messages:
        return having_properties(self._one("properties"))


def having_properties(column: pa.BinaryArray) -> Messages:
    """Messages that have properties and nothing else."""
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    found = Messages(np.frombuffer(data or b"", np.uint8), 0, np.zeros(len(column), np.int64))
    found.properties = ColumnParts(places[:-1], np.diff(places).astype(np.int32))
    return found


def _joined(
    spaces: pa.DictionaryArray, names: pa.DictionaryArray, join: Callable[[str, str], str]
) -> pa.DictionaryArray:
    """Names as they are in the log, of their namespaces and of what clients call them."""
    of, known = spaces.dictionary.to_pylist(), names.dictionary.to_pylist()
    numbers: NDArray[Any] = names.indices.to_numpy()
    if any(of):
        pairs = spaces.indices.to_numpy().astype(np.int64) * len(known) + numbers
        distinct, numbers = np.unique(pairs, return_inverse=True)
        texts = [join(of[pair // len(known)], known[pair % len(known)]) for pair in distinct.tolist()]
    else:
        texts = [join("", name) for name in known]
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), pa.array(texts, pa.string()))
