"""Compares what a data folder's index holds with what a replay of its log alone makes of it."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from lightqueue.message_store import MessageStore
from lightqueue.queues.table import KIND_NAMES
from store.files.folder import INDEX
from store.records.records import RecordType, read_records
from store.settings import StoreSettings
from store.state.sessions import SessionState
from tests.support.index_entries import stored_entries
from tests.support.stores import SOCKETS, indexed_keys

READ_BYTES = 1 << 20

Dump = dict[str, dict[str, Any]]


def assert_index_equals_replay(data: Path, settings: StoreSettings, scratch: Path) -> None:
    """`data` must not be in use; it is not touched."""
    found, expected = scratch / "found", scratch / "expected"
    for copy in (found, expected):
        shutil.copytree(data, copy, ignore=SOCKETS)
    shutil.rmtree(expected / INDEX)
    found_dump = dump(replace(settings, data=found))
    expected_dump = dump(replace(settings, data=expected))
    for kind, things in expected_dump.items():
        assert found_dump[kind] == things, kind
    shutil.rmtree(found)
    shutil.rmtree(expected)


def payloads(data: Path, settings: StoreSettings, scratch: Path) -> list[bytes]:
    """Those of all messages in a log, oldest first. The folder is left as a killed server left it."""
    copy = scratch / "copy"
    shutil.copytree(data, copy, ignore=SOCKETS)
    store = MessageStore(replace(settings, data=copy))
    try:
        records = [record for _, part in store.log.ranges(0, READ_BYTES) for record in read_records(part)]
        return [record.payload for record in records if record.type == RecordType.MESSAGE]
    finally:
        store.close()
        shutil.rmtree(copy)


def dump(settings: StoreSettings) -> Dump:
    """What the index says, with nothing in it that may differ between equals (identifiers, the cutting of packs)."""
    store = MessageStore(settings)
    try:
        return {
            "queues": dict(_queues(store)),
            "sessions": {session.client_id: _fields(session) for session in store.sessions},
            "groups": {":".join(each.state.key): each.state for each in store.groups},
            "keys": {"all": indexed_keys(store)},
            "delayed": {"pending": list(store.index.scan(b"d", b"e"))},
            "retained": {topic.decode(): log_offset for topic, log_offset in store.retained.below(b"")},
        }
    finally:
        store.close()


def _fields(session: SessionState) -> dict[str, Any]:
    """What was sent is sent again in the order in which it stands there, so that counts as well."""
    return msgspec.structs.asdict(session) | {"sent": list(session.sent.items())}


def _queues(store: MessageStore) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Each queue's entries as (queue_offset, log_offset), but for those that retention has made void."""
    stored = stored_entries(store.index)
    for kind, name, queue_id in store.queues.names():
        entries = stored.get(queue_id, [])
        yield f"{KIND_NAMES[kind]} {name.decode()}", [entry for entry in entries if entry[1] >= store.log.first]
