"""The section on the wire protocol in docs/formats.md says what the code does."""

import json
import re

import msgspec
import pytest

from store.records._records import RecordBatch
from store.records.records import RecordType
from store.wire import messages
from store.wire.frames import HEAD, FrameReader, encode
from store.wire.handshake import MAGIC, ServerHandshake
from store.wire.messages import (
    KINDS,
    Append,
    Appended,
    Failed,
    FailureCode,
    Following,
    Hello,
    QueueInfo,
    RefusedReason,
    Role,
    Welcome,
    WireMessage,
)
from tests.unit.project.test_formats_doc import PAGE, as_text, vector

SECTION = PAGE[PAGE.index("## Wire protocol") :]
SENDERS = {
    "store": {Role.STORE},
    "gateway": {Role.GATEWAY},
    "client": {Role.CLIENT},
    "operator": {Role.OPERATOR},
    "gateway, client": {Role.GATEWAY, Role.CLIENT},
    "client, operator": {Role.CLIENT, Role.OPERATOR},
    "gateway, store": {Role.GATEWAY, Role.STORE},
    "peer": {Role.GATEWAY, Role.CLIENT, Role.OPERATOR},
    "both": set(Role),
}


def test_hello() -> None:
    data = b"".join(vector("hello"))
    hello = Hello([1], "gateway", "gw-1", "s3cret")
    assert data == MAGIC + encode(hello)
    welcome = Welcome(1, "main", 0, 1024, 1024, 5000, [], 64)
    server = ServerHandshake(lambda _: welcome, {"gateway": "s3cret"})
    assert server.feed(data)
    assert server.hello == hello


def test_append_and_its_answers() -> None:
    asked, *answers = vector("append, appended, failed")
    (append,) = FrameReader(1024, Role.CLIENT).feed(asked)
    assert (append.message, append.request_id, append.size_bytes) == (Append(3), 7, len(asked))
    batch = RecordBatch()
    batch.append(
        RecordType.MESSAGE, b"21.5", topic=b"line/7", client_id=b"m7", attributes=bytes.fromhex("0102000500"), flags=2
    )
    assert append.records == bytes(batch)
    assert encode(Append(3), 7, bytes(batch)) == asked
    appended, failed = FrameReader(1024, Role.STORE).feed(b"".join(answers))
    assert (appended.message, appended.request_id) == (Appended(4096, 4160), 7)
    assert (failed.message, failed.request_id) == (Failed(FailureCode.STORE_FULL, "no space left"), 8)


BY_NAME = {kind.message.__name__: kind.message for kind in KINDS}


def listed() -> list[tuple[str, str, str, str, str]]:
    return re.findall(r"^\| (\d+) \| ([A-Z]\w+) \| (\w+(?:, \w+)?) \| (.*) \|(.*)\|$", SECTION, re.MULTILINE)


def test_every_message_is_listed() -> None:
    assert {(int(number), name): SENDERS[sender] for number, name, sender, _, _ in listed()} == {
        (kind.number, kind.message.__name__): kind.senders for kind in KINDS
    }


@pytest.mark.parametrize(("name", "fields"), [(name, fields) for _, name, _, fields, _ in listed()])
def test_the_fields_of_a_message(name: str, fields: str) -> None:
    named = [field for field in BY_NAME[name].__struct_fields__ if f"`{field}`" in fields]
    assert tuple(named) == BY_NAME[name].__struct_fields__


def test_requests_are_those_with_answers() -> None:
    answers = {name: {answer for answer in text.strip().split(", ") if answer} for _, name, _, _, text in listed()}
    kinds = {kind.message.__name__: kind for kind in KINDS}
    for name, kind in kinds.items():
        if kind.asked and Role.STORE not in kind.senders:
            assert answers[name]
            for answer in answers[name]:
                assert kinds[answer].asked
                assert kinds[answer].senders == {Role.STORE}


def test_codes_and_kinds_are_listed() -> None:
    for code in [*RefusedReason, *FailureCode]:
        assert f"`{code}`" in SECTION
    assert f"{messages.MOST_ITEMS:,} items" in SECTION
    assert "| 16 | | body: the message" in SECTION
    assert HEAD.size == 16


def examples() -> list[tuple[str, str, str]]:
    return re.findall(r"^\| ([A-Z]\w+) \| `([0-9a-f]+)` \| `(.*)` \|$", SECTION, re.MULTILINE)


@pytest.mark.parametrize(("name", "body", "says"), examples())
def test_an_example(name: str, body: str, says: str) -> None:
    payload = bytes.fromhex(body)
    assert as_text(msgspec.msgpack.decode(payload)) == json.loads(says)
    message: WireMessage = msgspec.msgpack.decode(payload, type=BY_NAME[name])
    assert msgspec.msgpack.encode(message) == payload
    assert len(json.loads(says)) == len(message.__struct_fields__)
    if isinstance(message, Following):
        assert message.queues[0] == QueueInfo(ref=3, kind=2, next_offset=7, position=5)


def test_every_message_has_an_example() -> None:
    assert [name for name, _, _ in examples()] == [kind.message.__name__ for kind in KINDS]
