"""The contents of a peer's messages: the compiled check and its plain-Python model agree on every input."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.records._records import RecordBatch
from store.records.records import RecordFlag, RecordType

TYPES = bytes((RecordType.MESSAGE, RecordType.PROGRESS))
FUZZED = 30_000
FLAGS = int(RecordFlag.QOS_MASK | RecordFlag.RETAIN | RecordFlag.EXPIRES | RecordFlag.LIVE_ONLY)
LATEST_DUE_MS = 1 << 40
Fields = tuple[int, bytes, bytes, bytes, bytes]  # flags, topic, client_id, attributes, properties


# --- the model


def is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def is_topic(data: bytes) -> bool:
    return bool(data) and is_text(data) and not set(data) & set(b"+#") and data.count(b"/") < 200


def is_answer(data: bytes) -> bool:
    """A response topic is one that a client knows by that name."""
    return is_topic(data) and not data.startswith(b"$ns:")


def string(data: bytes) -> tuple[bytes, bytes]:
    """A value behind its two bytes of length, and the rest. Raises ValueError."""
    size = int.from_bytes(data[:2], "big")
    if len(data) < 2 + size:
        raise ValueError("cut off")
    return data[2 : 2 + size], data[2 + size :]


def are_properties(data: bytes) -> bool:
    seen: set[int] = set()
    while data:
        identifier, data = data[0], data[1:]
        if identifier in seen and identifier != 0x26:
            return False
        seen.add(identifier)
        try:
            match identifier:
                case 0x01:
                    is_good, data = data[:1] in (b"\0", b"\1"), data[1:]
                case 0x02:
                    is_good, data = len(data) >= 4, data[4:]
                case 0x03 | 0x08 | 0x09:
                    value, data = string(data)
                    is_good = identifier == 0x09 or (is_text(value) if identifier == 0x03 else is_answer(value))
                case 0x26:
                    key, data = string(data)
                    value, data = string(data)
                    is_good = is_text(key) and is_text(value)
                case _:
                    return False
        except ValueError:
            return False
        if not is_good:
            return False
    return True


def are_attributes(data: bytes) -> bool:
    found: dict[int, bytes] = {}
    while data:
        size = int.from_bytes(data[1:3], "little")
        if len(data) < 3 + size or data[0] in found:
            return False
        found[data[0]], data = data[3 : 3 + size], data[3 + size :]
    return all(
        len(value) == 2 if tag == 1 else tag in (3, 4) and 0 < len(value) < 256 and is_text(value)
        for tag, value in found.items()
    )


def is_good(fields: Fields) -> bool:
    flags, topic, client_id, attributes, properties = fields
    if flags & RecordFlag.DELAYED:
        due, attributes = attributes[-11:], attributes[:-11]
        if due[:3] != b"\x10\x08\0" or len(due) != 11 or int.from_bytes(due[3:], "little") > LATEST_DUE_MS:
            return False
    return (
        not flags & ~(FLAGS | RecordFlag.DELAYED)
        and flags & 3 < 3
        and is_topic(topic)
        and is_text(client_id)
        and are_attributes(attributes)
        and are_properties(properties)
    )


def is_taken(fields: Fields) -> bool:
    flags, topic, client_id, attributes, properties = fields
    batch = RecordBatch()
    batch.append(
        RecordType.MESSAGE,
        b"x",
        topic=topic,
        client_id=client_id,
        attributes=attributes,
        properties=properties,
        flags=flags,
    )
    taken = RecordBatch()
    try:
        assert taken.extend_checked(bytes(batch), TYPES, batch.size, LATEST_DUE_MS) == []
    except ValueError:
        assert taken.size == 0
        return False
    assert bytes(taken) == bytes(batch)
    return True


# --- inputs

odd_texts = st.sampled_from(
    (b"\0", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff", b"+", b"/#", b"$ns:a", b"$ns")
)
texts = st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")) | odd_texts | st.binary(max_size=4)
strings = texts.map(lambda text: len(text).to_bytes(2, "big") + text)
values = st.one_of(
    st.tuples(st.just(b"\1"), st.binary(min_size=1, max_size=1)),
    st.tuples(st.just(b"\2"), st.binary(min_size=4, max_size=4)),
    st.tuples(st.sampled_from((b"\3", b"\x08", b"\x09")), strings),
    st.tuples(st.just(b"\x26"), strings, strings),
    st.tuples(st.binary(min_size=1, max_size=1), strings),
).map(b"".join)
properties = st.lists(values, max_size=4).map(b"".join) | st.binary(max_size=12)
attribute = st.tuples(st.sampled_from((3, 4, 1, 5)), texts | st.binary(min_size=2, max_size=2)).map(
    lambda each: bytes((each[0], len(each[1]), 0)) + each[1]
)
attributes = st.just(b"") | st.lists(attribute, max_size=3).map(b"".join) | st.binary(max_size=6)
dues = st.binary(max_size=8).map(lambda tail: b"\x10\x08\0" + tail.ljust(8, b"\0"))
attributes = attributes | st.tuples(attributes, dues).map(b"".join)
topics = st.lists(texts, min_size=1, max_size=4).map(b"/".join).filter(bool)
flags = st.sampled_from((0, 1, 2, 4, 8, 16, 30, 64, 65)) | st.integers(0, 255)


@given(st.tuples(flags, topics, texts | st.just(b""), attributes, properties))
def test_the_check_is_the_model(fields: Fields) -> None:
    assert is_taken(fields) == is_good(fields)


@pytest.mark.parametrize("topic", [b"$ns:acme/x", b"$ns:", b"$ns", b"$nsx/a", b"a/$ns:b"])
def test_a_response_topic_is_a_clients_own_name(topic: bytes) -> None:
    fields = (0, b"t", b"", b"", b"\x08" + len(topic).to_bytes(2, "big") + topic)
    assert is_taken(fields) == is_good(fields) == (not topic.startswith(b"$ns:"))


@given(st.binary(max_size=8))
def test_text_is_what_python_decodes(data: bytes) -> None:
    assert is_taken((0, b"t", data, b"", b"")) == is_text(data)


def test_every_sequence_of_two_bytes() -> None:
    for number in range(1 << 16):
        data = number.to_bytes(2, "big")
        assert is_taken((0, b"t", data, b"", b"")) == is_text(data), data


def test_by_the_thousand() -> None:
    rng = random.Random(5)
    good = 0
    for _ in range(FUZZED):
        data = bytearray(b"\1\1\2\0\0\0\5\3\0\1a\x08\0\3r/1\x09\0\2\0\xff\x26\0\1k\0\1v")
        for _ in range(rng.choice((0, 1, 1, 2))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 3, 8, 9, 0x26, 0x7F, 0xFF, rng.randrange(256)))
        fields = (rng.choice((0, 1, 2, 8)), b"t", b"c", b"", bytes(data[: rng.choice((len(data), rng.randrange(30)))]))
        assert is_taken(fields) == is_good(fields), fields
        good += is_good(fields)
    assert FUZZED // 20 < good < FUZZED * 19 // 20


def test_records_that_are_no_messages_are_given_back() -> None:
    batch = RecordBatch()
    batch.append(RecordType.PROGRESS, b"1")
    batch.append(RecordType.MESSAGE, b"2", topic=b"t")
    batch.append(RecordType.PROGRESS, b"3", flags=1)
    taken = RecordBatch()
    others = taken.extend_checked(bytes(batch), TYPES, batch.size)
    assert [(each[3], each[4], each[9]) for each in others] == [(21, 0, b"1"), (21, 1, b"3")]
    with pytest.raises(ValueError, match=f"at most {batch.size - 1} are taken"):
        taken.extend_checked(bytes(batch), TYPES, batch.size - 1)
    assert bytes(taken) == bytes(batch)
