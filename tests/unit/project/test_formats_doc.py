"""docs/formats.md says what the code does: its example vectors are decoded here from the page."""

import json
import re
import struct
from pathlib import Path

import msgspec
import pytest

from gateway.handover.state import decode_batch, encode_batch, version_of
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import (
    ENTRY_BYTES,
    FILTER,
    LEVEL,
    TOPIC,
    key_hash,
    neighbour_entry,
    neighbour_position,
    neighbours_key,
    newest_neighbour,
    pack_entry,
    unpacked,
    unpacked_neighbours,
)
from lightqueue.queues.keys import part_key, run_key
from lightqueue.queues.layout import NEXT_ID_KEY, entry_key, queue_key, queue_value
from lightqueue.queues.neighbours import entry_size
from lightqueue.upkeep.dispatching import add_again
from lightqueue.upkeep.trimming import TRIMMED_KEY
from store.files.marks import read_marks
from store.files.segment import HEADER_BYTES, Segment
from store.files.sums import State, Sum, decode_sums
from store.log.index import APPLIED_KEY, FORMAT, FORMAT_KEY, STATE_KEY
from store.records._records import RecordBatch, verify, walk
from store.records.compression import plain
from store.records.records import Attribute, Record, RecordFlag, RecordType, decode_attributes
from store.replication.frames import Leader, decode_frame
from store.replication.judging import FrameJudge, JudgedFrame, ReplicaMark, Verdict
from store.state import delayed, group_states, left_by, peers, retained, sessions
from store.state.changes import (
    TYPES,
    GroupAdvanced,
    PeerAppended,
    Progress,
    SessionClosed,
    SessionOpened,
    Subscribed,
    SubscriptionState,
    WillFired,
    WillState,
    decode_change,
    encode_change,
)
from store.state.left_by import LeftBy
from tests.support.stores import small, subscribe

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
NOVEMBER_2023_MS = 1_700_000_000_000
DUE_MS = NOVEMBER_2023_MS + 30_000


def vector(name: str) -> list[bytes]:
    """The lines of an example, as bytes."""
    found = re.search(rf"<!-- vector: {re.escape(name)} -->\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"formats.md has no vector '{name}'"
    return [bytes.fromhex(line) for line in found[1].splitlines()]


def test_segment_header(tmp_path: Path) -> None:
    header = b"".join(vector("segment header"))
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(header)
    segment = Segment.open(path)
    assert len(header) == HEADER_BYTES
    assert segment.first == HEADER_BYTES
    segment.close()


def test_marks(tmp_path: Path) -> None:
    (tmp_path / "marks").write_bytes(b"".join(vector("marks")))
    assert read_marks(tmp_path) == (7, 0, 64, bytes(range(16)))


def test_sums() -> None:
    data = b"".join(vector("sums"))
    sums = decode_sums(data)
    assert sums is not None
    assert (sums.identity, sums.pass_ms) == (bytes(range(16)), NOVEMBER_2023_MS)
    assert list(sums.entries.values()) == [Sum(0, 65536, bytes(range(32)), NOVEMBER_2023_MS, State.DAMAGED)]
    assert sums.encode() == data


def test_frames_of_a_replicated_log() -> None:
    lines = vector("frames")
    read = [decode_frame(line) for line in lines]
    judge = FrameJudge(ReplicaMark(8, 0, 2, 4096, None))
    assert [judge.judge(9 + at, each) for at, each in enumerate(read)] == [
        JudgedFrame(Verdict.BEGINS, 4096),
        JudgedFrame(Verdict.ACCEPTED, 4096, b"12345678"),
        JudgedFrame(Verdict.OPEN),
        JudgedFrame(Verdict.ACCEPTED, 4104, b"abcdefgh"),
        JudgedFrame(Verdict.STOPS, 4112),
    ]
    assert judge.leader == Leader("store-1:7700", bytes(range(16)))
    assert [each.frame.encode() for each in read] == lines


def test_state_of_a_hand_over() -> None:
    """Recorded with version 1: every later release that says version 1 reads it."""
    data = b"".join(vector("handed connections"))
    assert version_of(data) == 1
    (connection,) = decode_batch(data)
    session = connection.session
    assert session is not None
    assert (connection.rest, connection.aliases_out, connection.aliases_in) == (
        b"2\x0b",
        [(b"line/7", 1)],
        {2: "from/7"},
    )
    assert (session.client_id, session.inflight[:2], session.received) == ("device-7", b"\x03\0", [9])
    assert [(each.packet_id, each.qos, each.released) for each in session.held] == [(4, 2, True)]
    assert [(each.ref, each.topic_filter, each.position) for each in session.readers] == [(1, "line/7", 12)]
    assert session.will == WillState("gone/7", b"bye", 1, False, b"", 5)
    assert encode_batch([connection]) == data


def test_gap() -> None:
    data = b"".join(vector("gap"))
    assert verify(data, 64)[0] == len(data)
    record = Record._make(next(iter(walk(data))))
    assert (record.type, record.payload, record.timestamp_ms) == (RecordType.GAP, bytes(8), 0)


def test_message() -> None:
    data = b"".join(vector("message"))
    assert verify(data, 64)[0] == len(data)
    record = Record._make(next(iter(walk(data))))
    assert (record.type, record.topic, record.client_id, record.payload) == (1, b"line/7", b"m7", b"21.5")
    assert (record.qos, record.retain, record.timestamp_ms) == (2, False, NOVEMBER_2023_MS)
    assert decode_attributes(record.attributes) == {Attribute.PACKET_ID: b"\5\0"}


def test_compressed() -> None:
    data = b"".join(vector("compressed"))
    assert verify(data, 64)[0] == len(data)
    record = Record._make(next(iter(walk(data))))
    assert (record.flags, plain(record.payload)) == (RecordFlag.COMPRESSED | 1, b"21.5 " * 40)


def test_batch() -> None:
    data = b"".join(vector("batch"))
    assert verify(data, 128)[0] == len(data)
    message, fired = map(Record._make, walk(data))
    assert (message.log_offset, message.topic, message.payload) == (168, b"a", b"x")
    assert decode_change(fired.type, fired.payload) == WillFired("m7")


def test_state_changes() -> None:
    opened, subscribed, progress = vector("session opened, subscribed, progress")
    assert decode_change(RecordType.SESSION_OPENED, opened) == SessionOpened("m7", True, 60)
    closed = msgspec.msgpack.encode(["m7", 60, False, 104, b"", b""])  # of a log that is older than the last field
    assert decode_change(RecordType.SESSION_CLOSED, closed) == SessionClosed("m7", 60, False, 104)
    assert decode_change(RecordType.SUBSCRIBED, subscribed) == Subscribed("m7", [SubscriptionState("a/+", 1)])
    assert decode_change(RecordType.PROGRESS, progress) == Progress("m7", acked=104, completed=[5])


@pytest.mark.catalogue("B5")
def test_entry() -> None:
    (entry,) = vector("entry")
    assert len(entry) == ENTRY_BYTES
    assert pack_entry(entry, 0) == 64


@pytest.mark.catalogue("B5")
def test_pack() -> None:
    pack = unpacked(b"".join(vector("pack")))
    entries = [struct.unpack_from("<QIQ", pack, at) for at in range(0, len(pack), ENTRY_BYTES)]
    assert entries == [(4096, 80, 0), (4176, 80, 0), (6216, 72, 0xEF5A4A7916C5F26F)]


def test_entries_of_neighbours() -> None:
    lines = vector("neighbours")
    value = unpacked_neighbours(b"".join([*lines[:4], bytes(60), *lines[4:]]))
    positions = [neighbour_position(value, queue_id) for queue_id in range(128, 192)]
    assert positions == [(0, 0), (5, 4096), (9, 2048), (1, 4160)] + [(0, 0)] * 60
    entries = {queue_id: neighbour_entry(value, queue_id) for queue_id in range(128, 192)}
    found = {queue_id: (pack_entry(entry, 0), entry_size(entry)) for queue_id, entry in entries.items() if entry}
    assert found == {129: (4096, 64), 131: (4160, 72)}
    assert newest_neighbour(value) == 4160


def test_carried() -> None:
    data = b"".join(vector("carried"))
    assert verify(data, 8192)[0] == len(data)
    record = Record._make(next(iter(walk(data))))
    assert record.flags == RecordFlag.RETAIN | RecordFlag.CARRIED
    assert (record.topic, record.client_id, record.payload) == (b"line/7", b"pump", b"on")
    assert decode_attributes(record.attributes) == {Attribute.STORED_MS: NOVEMBER_2023_MS.to_bytes(8, "little")}


def test_delayed() -> None:
    """The page's dispatch is what a store makes of the page's delayed message."""
    lines = vector("delayed")
    pending, dispatched = b"".join(lines[:2]), b"".join(lines[2:])
    assert (verify(pending, 64)[0], verify(dispatched, 8192)[0]) == (len(pending), len(dispatched))
    record = Record._make(next(iter(walk(pending))))
    assert record.flags == RecordFlag.DELAYED | 1
    assert decode_attributes(record.attributes) == {Attribute.DUE_MS: DUE_MS.to_bytes(8, "little")}
    batch = RecordBatch()
    assert add_again(batch, record, delayed.DelayedMessage(DUE_MS, 64, 64), is_pending=False)
    again, expected = Record._make(next(iter(walk(bytes(batch))))), Record._make(next(iter(walk(dispatched))))
    assert again._replace(log_offset=8192, timestamp_ms=DUE_MS) == expected


def test_left_by() -> None:
    (data,) = vector("left by")
    assert left_by.encode(LeftBy("dev", "acme", "acme-dev")) == data
    assert left_by.decode(data) == LeftBy("dev", "acme", "acme-dev")


def test_a_will_of_an_older_version_does_not_say_who_left_it() -> None:
    will = ["m7/gone", b"1", 1, True, b"", 30]
    change = decode_change(RecordType.SESSION_OPENED, msgspec.msgpack.encode(["m7", False, 3600, will]))
    assert isinstance(change, SessionOpened)
    assert change.will == WillState("m7/gone", b"1", 1, True, b"", 30, left_by=b"")


def test_a_group_of_an_older_version_does_not_say_where_its_queue_ended() -> None:
    change = decode_change(
        RecordType.GROUP_ADVANCED, msgspec.msgpack.encode(["billing", "line/#", [[0, 9]], [], [], 0])
    )
    assert isinstance(change, GroupAdvanced)
    assert (change.end, change.acked, change.partitions) == (-1, -1, 0)


def test_a_peer_of_an_older_version_does_not_say_whose_its_name_is() -> None:
    older = bytes.fromhex("96a467772d310791920505c2a3646576919503a66c696e652f37080040")
    change = decode_change(RecordType.PEER_APPENDED, older)
    assert isinstance(change, PeerAppended)
    assert (change.sequence, change.user, change.owner) == (7, "dev", None)


def examples() -> list[tuple[RecordType, bytes, str]]:
    found = re.findall(r"^\| (\d\d) \| `([0-9a-f]+)` \| `(.*)` \|$", PAGE, re.MULTILINE)
    return [(RecordType(int(number)), bytes.fromhex(payload), says) for number, payload, says in found]


@pytest.mark.parametrize(("kind", "payload", "says"), examples())
def test_each_state_change(kind: RecordType, payload: bytes, says: str) -> None:
    assert as_text(msgspec.msgpack.decode(payload)) == json.loads(says)
    change = decode_change(kind, payload)
    assert encode_change(change) == (kind, payload)
    assert len(json.loads(says)) == len(change.__struct_fields__)


def as_text(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode()
    return [as_text(item) for item in value] if isinstance(value, list) else value


def test_every_state_change_has_an_example() -> None:
    assert [kind for kind, _, _ in examples()] == list(TYPES)


def test_keys() -> None:
    keys = {of: bytes.fromhex(key) for key, of in re.findall(r"^\| `([0-9a-f]{6,})` \| (\D.*) \|$", PAGE, re.MULTILINE)}
    assert keys == {
        "the queue of the topic `line/7`": queue_key(TOPIC, b"line/7"),
        "the queue of the first level `line`": queue_key(LEVEL, b"line"),
        "the queue of the filter `+/7`": queue_key(FILTER, b"+/7"),
        "queue 5, entries from queue_offset 1024 on": entry_key(5, 1024),
        "entries of queues 128 to 191, the oldest at log_offset 4096": neighbours_key(2, 4096),
        "items of the log's first part, from the message at log_offset 4096 with the key `foobar` on": part_key(
            0, key_hash(b"foobar") << 32 | 4096
        ),
        "items of the newest part, from log_offset 4096 on": run_key(4096),
        "the retained message of `line/7`": retained.key_of(b"line/7"),
        "the delayed message of log_offset 64 that is due in November 2023": delayed._key(DUE_MS, 64),
        "the session `m7`": sessions.KEY_PREFIX + b"m7",
        "the peer `gw-1`": peers.KEY_PREFIX + b"gw-1",
        "the group `billing` over `line/#`": group_states.index_key(("billing", "line/#")),
    }
    assert b"".join(vector("queue")) == queue_value(5, 7)
    for key in (APPLIED_KEY, STATE_KEY, FORMAT_KEY, NEXT_ID_KEY, TRIMMED_KEY, retained.COUNT_KEY, delayed.COUNT_KEY):
        assert f"`{key.decode()}`" in PAGE


def test_an_item_of_the_index_of_keys(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path))
    part = store.queues.dispatcher.key_part(0)
    part.load(b"".join(vector("key")))
    assert list(store.keys.candidates(b"foobar", 1 << 62)) == [4096]
    assert f"`m:format` is {FORMAT};" in PAGE
    store.close()


def test_a_filters_queue(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path))
    subscribe(store, "m7", ["+/7"])
    store.write_index()
    assert b"".join(vector("filter queue")) == store.index.get(queue_key(FILTER, b"+/7"))
    store.close()


def test_every_kind_of_record_is_listed() -> None:
    listed = {int(number): name for number, name in re.findall(r"^\| (\d\d) \| ([A-Z_]{5,}) \|", PAGE, re.MULTILINE)}
    assert listed == {kind.value: kind.name for kind in RecordType if kind.value >= 16}
