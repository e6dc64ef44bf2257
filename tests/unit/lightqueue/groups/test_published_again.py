"""A dead letter is published again as it was: topic, payload, properties, key and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightqueue.groups.dead_letters import NotPublishable, append_dead_letter, published_again
from lightqueue.message_store import MessageStore
from notify.errors import GroupRefused
from notify.local import dead_letters
from notify.local.dead_letters import DeadLetterDesk
from store.namespaces import Namespace
from store.records._records import RecordBatch
from store.records.records import Attribute, Record, RecordFlag, RecordType, encode_attribute, read_records
from store.state.group_settings import GroupSettings
from store.state.group_states import GroupState
from tests.support.stores import small

PROPERTIES = bytes.fromhex("02 0000000a 26 0004 756e6974 0001 43")  # expires after 10 s; unit: C
NAMES = [Namespace(), Namespace("acme")]


def made(*records: Record) -> list[Record]:
    batch = RecordBatch()
    for each in records:
        batch.append(
            RecordType.MESSAGE,
            each.payload,
            topic=each.topic,
            client_id=each.client_id,
            attributes=each.attributes,
            properties=each.properties,
            flags=each.flags,
        )
    return list(read_records(memoryview(bytes(batch))))


def message(topic: str, properties: bytes = PROPERTIES) -> Record:
    batch = RecordBatch()
    attributes, flags = encode_attribute(Attribute.KEY, b"k"), 1 | RecordFlag.EXPIRES
    batch.append(
        RecordType.MESSAGE, b"21.5", topic=topic.encode(), client_id=b"m7", attributes=attributes,
        properties=properties, flags=flags,
    )  # fmt: skip
    (record,) = read_records(memoryview(bytes(batch)))
    return record


def buried(record: Record, group: str, why: str = "no use") -> Record:
    batch = RecordBatch()
    state = GroupState(group, "#", GroupSettings(), [0])
    assert append_dead_letter(batch, state, record, why, 3, record.timestamp_ms, 1 << 20)
    (letter,) = read_records(memoryview(bytes(batch)))
    return letter


def again(letter: Record, group: str, after_s: int = 0) -> Record:
    batch = RecordBatch()
    published_again(batch, group, letter, letter.timestamp_ms + 1_000 * after_s)
    (record,) = read_records(memoryview(bytes(batch)))
    return record


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names.name or "default")
@pytest.mark.parametrize("why", ["no use", "", "\0&\0\x0fpenstock-reason\0\x01x", "x" * 1_024])
def test_republished_dead_letter_is_the_original_message(names: Namespace, why: str) -> None:
    group, first = names.group("billing"), message(names.topic("line/7"))
    letter = buried(first, group, why)
    assert letter.topic.decode() == names.topic("$dead/billing/line/7")
    found = again(letter, group)
    fields = ("topic", "payload", "client_id", "attributes", "properties", "flags")
    assert [getattr(found, name) for name in fields] == [getattr(first, name) for name in fields]
    assert again(letter, group, after_s=4).properties == PROPERTIES.replace(b"\n", b"\x06", 1)


def test_expired_dead_letter_is_not_republished() -> None:
    with pytest.raises(NotPublishable, match="has expired"):
        again(buried(message("line/7"), "billing"), "billing", after_s=11)


def user_property(name: bytes, value: bytes) -> bytes:
    return b"&" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        user_property(b"penstock-topic", b"line/7"),
        user_property(b"penstock-reason", b"") + user_property(b"penstock-topic", b"secret/1"),
        user_property(b"penstock-topic", b"line/7") + user_property(b"penstock-reason", b""),
        user_property(b"penstock-reason", b"")[:-1],
        user_property(b"penstock-reason", b"") + b"&\0\x0epenstock-topic\xff\xffline",
    ],
)
def test_forged_dead_letter_is_not_republished(properties: bytes) -> None:
    (forged,) = made(message("$dead/billing/line/7", properties)._replace(flags=1))
    with pytest.raises(NotPublishable, match="does not say"):
        again(forged, "billing")


def test_older_open_letters_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MOST_OPEN", 3)
    store = MessageStore(small(tmp_path))
    batch = RecordBatch()
    for number in range(10):
        letter = buried(message(f"line/{number}"), "billing")
        batch.append(RecordType.MESSAGE, letter.payload, topic=letter.topic, properties=letter.properties)
    store.append(batch)
    desk = DeadLetterDesk(store)

    def open_ones() -> dict[int, Record]:
        found: dict[int, Record] = {}
        for _ in desk.listed("billing", 0, 100, 1 << 20, lambda letters, _: found.update(
            {each.queue_offset: next(read_records(memoryview(each.data))) for each in letters}
        )):  # fmt: skip
            pass
        return found

    def settled(place: int) -> bool:
        return desk.settle("billing", (place, places[place].log_offset), False, store.now_ms())

    places = open_ones()
    assert list(places) == list(range(10))
    with pytest.raises(GroupRefused, match="more than 3 older dead letters are open"):
        settled(4)
    assert settled(3)
    with pytest.raises(GroupRefused):
        settled(5)
    assert settled(1)
    assert settled(5)
    assert not settled(5)
    assert list(open_ones()) == [0, 2, 4, 6, 7, 8, 9]
    store.close()
    store = MessageStore(small(tmp_path))
    desk = DeadLetterDesk(store)
    assert list(open_ones()) == [0, 2, 4, 6, 7, 8, 9]
    store.close()
