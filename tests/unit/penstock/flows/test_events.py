"""Events as they are written: read back by the CloudEvents library, and by what JSON says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event

from penstock.flows.definition import Flow, FlowSource
from penstock.flows.errors import Unfit
from penstock.flows.events import EventWriter, event_of
from penstock.sdk.message import Message
from tests.unit.penstock.flows.messages import AT_MS, PLACE, message

AT = datetime.fromtimestamp(AT_MS / 1000, UTC)


def flow(**fields: Any) -> Flow:
    return Flow("alarms", msgspec.convert({"from": "plant/#", "to": "http://h"} | fields, FlowSource))


def written(flow: Flow, *messages: Message) -> HTTPMessage:
    writer = EventWriter(flow, "penstock://store")
    found = writer.http([event_of(flow, each) for each in messages])
    return HTTPMessage(found.headers, found.body)


@pytest.mark.parametrize("mode", ["cloudevents", "cloudevents-binary"])
@pytest.mark.parametrize(
    ("payload", "content_type", "data"),
    [
        (b'{"celsius": 91}', None, {"celsius": 91}),
        (b"91", "text/plain", "91"),
        ("größer".encode(), None, "größer"),
        (b"\xff\x00", None, b"\xff\x00"),
        (b'{"a":1}', "application/vnd.x+json; charset=utf-8", {"a": 1}),
    ],
)
def test_a_cloudevent_is_what_the_message_was(mode: str, payload: bytes, content_type: str | None, data: Any) -> None:
    found = written(flow(format=mode, type="com.example.reading"), message(payload, content_type=content_type))
    if mode == "cloudevents-binary":
        assert found.body == payload
    event = from_http_event(found)
    attributes = event.get_attributes()
    assert attributes["id"] == PLACE.message_id(4096)
    assert attributes["source"] == "penstock://store"
    assert attributes["subject"] == "plant/7/temp"
    assert attributes["type"] == "com.example.reading"
    assert attributes["time"] == AT
    read = event.get_data()
    assert (json.loads(read) if isinstance(data, dict) and isinstance(read, bytes | str) else read) in (data, payload)


@pytest.mark.parametrize("mode", ["cloudevents", "cloudevents-binary"])
def test_a_message_of_amqp_is_what_the_message_was(mode: str) -> None:
    mapped = flow(format=mode, map={"headers": {"site": "{levels[1]}"}})
    made = EventWriter(mapped, "penstock://store").amqp(event_of(mapped, message(b'{"celsius": 91}')))
    event = from_rabbitmq_event(RabbitMQMessage(dict(made[0]), made[1], made[2]))
    attributes = event.get_attributes()
    assert (attributes["id"], attributes["time"], attributes["site"]) == (PLACE.message_id(4096), AT, "7")
    assert (attributes["subject"], attributes["datacontenttype"]) == ("plant/7/temp", "application/json")
    assert event.get_data() == {"celsius": 91}


def test_a_batch_is_a_list_of_events() -> None:
    found = written(flow(format="cloudevents-batch"), message(b"1"), message(b"two", topic="plant/8/temp"))
    assert found.headers["Content-Type"] == "application/cloudevents-batch+json"
    events = json.loads(found.body)
    assert [(event["subject"], event["data"]) for event in events] == [("plant/7/temp", 1), ("plant/8/temp", "two")]


def test_raw_is_the_payload_with_the_headers_of_the_mapping() -> None:
    raw = flow(format="raw", map={"payload": "{json.c}", "headers": {"X-Site": "{levels[1]}"}})
    found = written(raw, message(b'{"c": 3}', content_type="application/json"))
    assert (found.headers, found.body) == ({"Content-Type": "application/json", "X-Site": "7"}, b"3")


def test_mapped_headers_are_extension_attributes() -> None:
    found = written(flow(map={"headers": {"site": "{levels[1]}"}}), message(b"1"))
    assert json.loads(found.body)["site"] == "7"


def test_message_with_a_false_json_content_type_is_unfit() -> None:
    with pytest.raises(Unfit, match="is said to be application/json, and is not"):
        written(flow(), message(b"{", content_type="application/json"))


@pytest.mark.parametrize(
    ("payload", "expected"),
    [(b'{"a":1}', {"json": {"a": 1}}), (b"text", {"payload": "text"}), (b"\xff", {"payload_base64": "/w=="})],
)
def test_a_raw_line_of_a_file(payload: bytes, expected: dict[str, Any]) -> None:
    raw = flow(format="raw", to="file:///x")
    line = EventWriter(raw, "").line(event_of(raw, message(payload, key="m-7")))
    assert json.loads(line) == expected | {
        "id": PLACE.message_id(4096),
        "topic": "plant/7/temp",
        "time": "2023-11-14T22:13:20.123Z",
        "key": "m-7",
    }
