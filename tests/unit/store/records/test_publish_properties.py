"""One table of what a PUBLISH may have: whatever reads or writes properties keeps, drops or refuses them as it says."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gateway.mqtt.codec_primitives import encode_varint
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import Publish
from gateway.mqtt.properties import PacketContext, Properties, decode_properties, encode_property_block
from gateway.sessions.connection import Connection
from penstock.columns import COLUMNS, Messages
from penstock.sdk.message import Message
from penstock.sdk.message_id import StorePlace
from penstock.sdk.outgoing import PublishOptions, outgoing
from penstock.spark.encoding import Defaults, Encoder
from store.records import publish_properties
from store.records._columns import find_pairs, find_properties
from store.records._records import RecordBatch, walk
from store.records.publish_properties import (
    COLUMN_PROPERTIES,
    PUBLISH_PROPERTIES,
    Keeping,
    PublishProperty,
    ValueForm,
    stored_properties,
)
from store.records.records import RecordType
from store.records.trace_context import TraceContext, find_context, with_context
from store.state.expiry import age
from tests.support.mqtt_bench import Bench, Client
from tests.support.mqtt_properties import TABLE
from tests.unit.conftest import StartBench

PXD = Path(publish_properties.__file__).with_name("_records.pxd")
BY_HAND = {bytes.fromhex(text)[0]: (bytes.fromhex(text), value) for _, value, text, _ in TABLE}
LINES = {line.identifier: line for line in PUBLISH_PROPERTIES}
SAMPLES = [
    pytest.param(
        LINES.get(identifier), *BY_HAND.get(identifier, (bytes((identifier, 0, 1)), None)), id=f"0x{identifier:02x}"
    )
    for identifier in (*BY_HAND, 0x00, 0x04, 0x2B, 0x3F, 0x40, 0x7F)
]
EACH = pytest.mark.parametrize(("line", "data", "value"), SAMPLES)
OF_PUBLISH = pytest.mark.parametrize(("line", "data", "value"), [each for each in SAMPLES if each.values[0]])

TOPIC = "plant/line/7"
USER = b"\x26\0\1k\0\1v"
EXPIRY_100_S, EXPIRY_70_S = b"\x02\0\0\0\x64", b"\x02\0\0\0\x46"
CONTEXT = TraceContext("1" * 32, "2" * 16, 1)
NOT_PROPERTIES = {"key", "tag", "qos", "retain", "compress", "wait"}
"""Options of the SDK's publish() that write no property."""


def publish(properties: bytes, qos: int = 0, flags: int = 0) -> bytes:
    packet_id = b"\0\1" if qos else b""
    topic = len(TOPIC).to_bytes(2, "big") + TOPIC.encode()
    body = topic + packet_id + encode_varint(len(properties)) + properties + b"payload"
    return bytes((0x30 | qos << 1 | flags,)) + encode_varint(len(body)) + body


def record(properties: bytes) -> bytes:
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, b"payload", topic=b"t", properties=properties)
    return bytes(batch)


def properties_of(records: bytes) -> bytes:
    ((*_, properties, _payload),) = walk(records)
    return properties


def is_taken_from_a_peer(properties: bytes) -> bool:
    try:
        RecordBatch().extend_checked(record(properties), bytes((RecordType.MESSAGE,)), 1 << 20)
    except ValueError:
        return False
    return True


class WatchedConnection(Connection):
    """Counts the packets that the compiled scanner leaves to the full codec."""

    left = 0

    def on_packet(self, first_byte: int, body: bytes) -> None:
        self.left += 1
        super().on_packet(first_byte, body)


def watched(bench: Bench) -> Client:
    client = Client(bench, kind=WatchedConnection)
    client.connect("publisher")
    return client


def left(client: Client) -> int:
    assert isinstance(client.connection, WatchedConnection)
    return client.connection.left


# --- the table and its constants


def test_the_table_has_the_standard_s_lines() -> None:
    of_publish = [(bytes.fromhex(text)[0], field) for field, _, text, packets in TABLE if "PUBLISH" in packets.split()]
    in_will = {field for field, _, _, packets in TABLE if "WILL" in packets.split()}
    assert [(line.identifier, line.name) for line in PUBLISH_PROPERTIES] == of_publish
    assert {line.name for line in PUBLISH_PROPERTIES if line.in_will} == in_will - {"will_delay_interval"}
    assert all(line.identifier < 64 for line in PUBLISH_PROPERTIES), "the leaves note in 64 bits what they have seen"


def test_the_compiled_leaves_have_the_same_numbers() -> None:
    section = PXD.read_text().split("--- the properties of a PUBLISH")[1].split("cdef inline")[0]
    found = {name: int(number, 0) for name, number in re.findall(r"^    ([A-Z_]+) = (\w+)", section, re.MULTILINE)}
    assert len(found) > 10
    forms = {form.name: int(form) for form in ValueForm}
    for name, number in found.items():
        if name != "FORM_BITS":
            assert forms.get(name, vars(publish_properties).get(name)) == number, name
    assert max(forms.values()) <= found["FORM_BITS"]


# --- the gateway


@EACH
def test_gateway_accepts_properties_of_clients_by_the_table(
    start_bench: StartBench, line: PublishProperty | None, data: bytes, value: Any
) -> None:
    bench = start_bench(topic_alias_maximum=65_535)
    client = watched(bench)
    before = left(client)
    client.send_bytes(publish(data))
    if line is None or not line.from_client:
        assert client.is_closed
        assert bench.stored() == []
        return
    assert [each.properties for each in bench.stored()] == [data if line.is_stored else b""]
    assert left(client) == before + (not line.is_stored), "the scanner takes what is stored as it is"
    client.send_bytes(publish(data * 2))
    assert client.is_closed is not line.repeats
    assert [each.properties for each in bench.stored()[1:]] == [data * 2] * line.repeats


@EACH
def test_properties_of_wills_by_the_table(line: PublishProperty | None, data: bytes, value: Any) -> None:
    block = encode_varint(len(data)) + data
    if data[0] == 0x18:  # the will delay interval: it is not in the will's PUBLISH
        assert line is None
    elif line is None or not line.in_will:
        with pytest.raises(ProtocolError):
            decode_properties(block, 0, PacketContext.WILL)
    else:
        will, _ = decode_properties(block, 0, PacketContext.WILL)
        assert encode_property_block(will, PacketContext.WILL) == block


@OF_PUBLISH
def test_subscribers_get_properties_by_the_table(bench: Bench, line: PublishProperty, data: bytes, value: Any) -> None:
    """One that is there, one that comes 30 s later, and one that comes then for the retained message."""
    sent = Properties(**{line.name: value}) if line.is_stored else Properties()
    there = bench.connect("there", topic_alias_maximum=10)
    later = bench.durable("later")
    for client in (there, later):
        client.subscribe(TOPIC, qos=1, subscription_identifiers=(200,))
    later.lose()
    watched(bench).send_bytes(publish(data if line.is_stored else b"", qos=1, flags=1))
    got = there.one(Publish).properties
    assert got == replace(sent, subscription_identifiers=(200,), topic_alias=1)
    bench.pass_time(30)
    later = bench.durable("later")
    newest = bench.connect("newest")
    newest.subscribe(TOPIC, qos=1, subscription_identifiers=(200,))
    if line.keeping is Keeping.AGED:
        setattr(sent, line.name, value - 30)
    for client in (later, newest):
        assert client.one(Publish).properties == replace(sent, subscription_identifiers=(200,))


# --- the store


@EACH
def test_store_accepts_properties_of_peers_by_the_table(line: PublishProperty | None, data: bytes, value: Any) -> None:
    is_stored = line is not None and line.is_stored
    assert is_taken_from_a_peer(data) is is_stored
    assert is_taken_from_a_peer(USER + data + USER) is is_stored
    assert is_taken_from_a_peer(data * 2) is (is_stored and line is not None and line.repeats)
    assert not is_taken_from_a_peer(data[:-1])


@pytest.mark.parametrize("text", ["01 02", "03 0001 ff", "08 0001 2b", "08 0000", "26 0001 00 0000", "26 0000 0001 ff"])
def test_values_that_the_store_does_not_take_from_a_peer(text: str) -> None:
    assert not is_taken_from_a_peer(bytes.fromhex(text))


@EACH
def test_expiry_and_trace_context_after_a_property_are_found(
    line: PublishProperty | None, data: bytes, value: Any
) -> None:
    """Expiry and trace context step over a property of the table. Behind another nothing can be found or changed."""
    is_known = line is not None
    shorter = EXPIRY_70_S if is_known and line is not None and line.keeping is not Keeping.AGED else EXPIRY_100_S
    aged = age(data + EXPIRY_100_S, 30)
    if is_known and data[0] == EXPIRY_100_S[0]:
        assert aged == data[:1] + (value - 30).to_bytes(4, "big") + EXPIRY_100_S
    else:
        assert aged == data + shorter
    traced = with_context(b"", CONTEXT)
    assert find_context(data + traced) == (CONTEXT if is_known else None)
    assert with_context(data, CONTEXT) == data + traced
    assert next(stored_properties(data + USER)) == (data[0], data[1:] if is_known else data[1:] + USER)


@EACH
def test_columns_show_properties_by_the_table(line: PublishProperty | None, data: bytes, value: Any) -> None:
    section = np.frombuffer(data + USER, np.uint8)
    starts, lengths = np.zeros(1, np.int64), np.full(1, len(section), np.int32)
    rows = len(COLUMN_PROPERTIES)
    found, sizes, counts = np.empty((rows, 1), np.int64), np.empty((rows, 1), np.int32), np.empty(1, np.int32)
    find_properties(section, starts, lengths, found, sizes, counts)
    is_pair = line is not None and line.form is ValueForm.TWO_TEXTS
    assert counts[0] == (line is not None) + is_pair
    pairs = find_pairs(section, starts, lengths, np.empty((2, 2), np.int64), np.empty((2, 2), np.int32))
    assert pairs == counts[0]
    shown = {
        each.column: bytes(section[at : at + size])
        for each, at, size in zip(COLUMN_PROPERTIES, found[:, 0], sizes[:, 0], strict=True)
        if size >= 0
    }
    expected = value.encode() if isinstance(value, str) else value
    assert shown == ({line.column: expected} if line is not None and line.column and not is_pair else {})


# --- what writes properties


@OF_PUBLISH
def test_sdk_writes_and_reads_properties_by_the_table(line: PublishProperty, data: bytes, value: Any) -> None:
    assert not line.option or line.option in PublishOptions.__annotations__
    if not line.option:
        return
    given: Any = {"expires_after": timedelta(seconds=2**32 - 1), "headers": {"k": ""}}.get(line.option, value)
    option: Any = {line.option: given}
    made = outgoing("t", b"payload", False, **option)
    assert properties_of(made.record) == data
    assert is_taken_from_a_peer(properties_of(made.record))
    (read,) = walk(made.record)
    assert getattr(Message(read, None, StorePlace.of("127.0.0.1", 7700)), line.option) == given


def test_the_sdk_has_no_other_options() -> None:
    options = {line.option for line in PUBLISH_PROPERTIES if line.option}
    assert set(PublishOptions.__annotations__) == options | NOT_PROPERTIES


@OF_PUBLISH
def test_spark_writes_and_reads_properties_by_the_table(line: PublishProperty, data: bytes, value: Any) -> None:
    assert not line.column or line.column in COLUMNS
    if not line.column:
        return
    shown = [{"key": key, "value": text} for key, text in value] if line.form is ValueForm.TWO_TEXTS else value
    schema = pa.schema([("topic", pa.string()), ("payload", pa.binary()), (line.column, COLUMNS[line.column].type)])
    rows = pa.RecordBatch.from_pylist([{"topic": "t", "payload": b"payload", line.column: shown}], schema=schema)
    records = Encoder(Defaults(), 0).encode(rows)
    assert properties_of(records) == data
    messages = Messages.find(np.frombuffer(records, np.uint8), 0)
    assert messages.column(line.column).to_pylist() == [shown]
