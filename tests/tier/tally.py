"""What was acknowledged, and what is in the table and in the log behind it: by count and a sum of hashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.tier.store_log import StoreLog
from store.records.records import RecordType, read_records
from tests.tier.places import TablePlace


@dataclass(frozen=True, slots=True)
class Tally:
    """So many messages, and the sum of their payloads' hashes."""

    count: int = 0
    hashes: int = 0

    def plus(self, payload: bytes) -> Tally:
        return Tally(self.count + 1, self.hashes + int.from_bytes(blake2b(payload, digest_size=8).digest()))


def tally(payloads: Iterable[bytes]) -> Tally:
    found = Tally()
    for payload in payloads:
        found = found.plus(payload)
    return found


def in_table_and_log(place: TablePlace, log: StoreLog) -> Iterator[bytes]:
    """The payloads of the table, to which nobody writes meanwhile, and those on the log's disk from where it ends."""
    at = 0
    try:
        table = DeltaTable(place.url, storage_options=place.options)
    except TableNotFoundError:
        pass
    else:
        at = table.transaction_version(log.identity) or 0
        for batch in table.to_pyarrow_dataset().to_batches(columns=["payload"]):
            yield from batch.column(0).to_pylist()
    while (piece := log.read(at)).data:
        assert piece.base <= at or not at, "the log does not have what the table does not have"
        for record in read_records(piece.data):
            if record.type == RecordType.MESSAGE:
                yield record.payload
        at = piece.log_offset + len(piece.data)
