"""What records of Kafka become."""

from pathlib import Path

import pytest

from penstock.flows.definition import Flow, read_flows
from penstock.flows.errors import Unfit
from penstock.flows.sources.messages import letter_of, message_of
from penstock.flows.sources.records import KafkaRecord

RECORD = KafkaRecord(
    "orders", 2, 17, b"k-7", b'{"n": 1}', [("unit", b"C"), ("raw", b"\xff"), ("none", None), ("zero", b"a\0")], 1_500
)


def flow_of(tmp_path: Path, mapped: str, more: str = "") -> Flow:
    text = f'[flow.orders]\nfrom = "kafka://h:9092/orders"\nto = "penstock:"\nmap = {{ {mapped} }}\n{more}'
    (tmp_path / "flows.toml").write_text(text)
    (flow,) = read_flows(tmp_path / "flows.toml")
    return flow


def test_unmapped_fields_of_a_record_stay(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, 'topic = "in/{topic}/{partition}/{offset}"')
    assert message_of(flow, RECORD) == ("in/orders/2/17", b'{"n": 1}', {"headers": {"unit": "C"}, "key": "k-7"})


def test_all_can_be_mapped(tmp_path: Path) -> None:
    mapped = """topic = "in/{headers['unit']}", payload = "{json.n + 1}", key = "{key}!", content_type = "text/plain",
    headers = { at = "{time}", unit = "F" }"""
    flow = flow_of(tmp_path, mapped.replace("\n    ", " "))
    options = {
        "headers": {"unit": "F", "at": "1970-01-01T00:00:01.500000Z"},
        "key": "k-7!",
        "content_type": "text/plain",
    }
    assert message_of(flow, RECORD) == ("in/C", b"2", options)


def test_a_header_says_the_content_type(tmp_path: Path) -> None:
    record = KafkaRecord("orders", 0, 0, None, "text", [("content-type", "text/plain")])
    found = message_of(flow_of(tmp_path, 'topic = "in"'), record)
    assert found == ("in", b"text", {"content_type": "text/plain"})


@pytest.mark.parametrize("key", [b"\xff", b"x" * 1025, None, b""])
def test_a_key_that_no_message_can_have_is_left_out(tmp_path: Path, key: bytes | None) -> None:
    assert message_of(flow_of(tmp_path, 'topic = "in"'), KafkaRecord("orders", 0, 0, key, b"")) == ("in", b"", {})


def test_where_leaves_out_and_what_it_cannot_judge_is_unfit(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, 'topic = "in"', 'where = "json.n > 1"')
    assert message_of(flow, RECORD) is None
    with pytest.raises(Unfit, match="is not JSON"):
        message_of(flow, KafkaRecord("orders", 0, 0, None, b"x"))


def test_a_dead_letter_says_where_it_comes_from(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, 'topic = "in"')
    said = [("penstock-reason", "why"), ("kafka-topic", "orders"), ("kafka-partition", "2"), ("kafka-offset", "17")]
    topic = "$flows/orders/dead/orders"
    assert letter_of(flow, RECORD, "why") == (topic, b'{"n": 1}', {"headers": [("unit", "C"), *said]})
    assert letter_of(flow, RECORD, "why", with_payload=False) == (topic, b"", {"headers": said})
