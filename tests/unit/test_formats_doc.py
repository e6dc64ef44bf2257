"""docs/formats.md says what the code does: its example vectors are decoded here from the page."""

import re
from pathlib import Path

from lightqueue._queues import ENTRY_BYTES, pack_entry
from store._records import verify, walk
from store.changes import Progress, SessionOpened, Subscribed, SubscriptionState, WillFired, decode_change
from store.records import Attribute, Record, RecordType, decode_attributes
from store.segment import HEADER_BYTES, Segment

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
NOVEMBER_2023_MS = 1_700_000_000_000


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


def test_message() -> None:
    data = b"".join(vector("message"))
    assert verify(data, 64)[0] == len(data)
    record = Record._make(next(iter(walk(data))))
    assert (record.type, record.topic, record.client_id, record.payload) == (1, b"line/7", b"m7", b"21.5")
    assert (record.qos, record.retain, record.timestamp_ms) == (2, False, NOVEMBER_2023_MS)
    assert decode_attributes(record.attributes) == {Attribute.PACKET_ID: b"\5\0"}


def test_batch() -> None:
    data = b"".join(vector("batch"))
    assert verify(data, 128)[0] == len(data)
    message, fired = map(Record._make, walk(data))
    assert (message.log_offset, message.topic, message.payload) == (168, b"a", b"x")
    assert decode_change(fired.type, fired.payload) == WillFired("m7")


def test_state_changes() -> None:
    opened, subscribed, progress = vector("session opened, subscribed, progress")
    assert decode_change(RecordType.SESSION_OPENED, opened) == SessionOpened("m7", True, 60)
    assert decode_change(RecordType.SUBSCRIBED, subscribed) == Subscribed("m7", [SubscriptionState("a/+", 1)])
    assert decode_change(RecordType.PROGRESS, progress) == Progress("m7", acked=104, completed=[5])


def test_entry() -> None:
    (entry,) = vector("entry")
    assert len(entry) == ENTRY_BYTES
    assert pack_entry(entry, 0) == 64


def test_every_kind_of_record_is_listed() -> None:
    listed = {int(number): name for number, name in re.findall(r"^\| (\d\d) \| ([A-Z_]{5,}) \|", PAGE, re.MULTILINE)}
    assert listed == {kind.value: kind.name for kind in RecordType if kind.value >= 16}
