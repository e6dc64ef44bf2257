"""Spans from a client's `traceparent` to subscribers and consumers: real servers, and a collector that takes OTLP."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock import Client
from penstock.sdk.tracing import consuming, links_to
from store.records.trace_context import parse_traceparent
from tests.conftest import IN_ALL_TOPOLOGIES, ONE_PROCESS, ServerFactory
from tests.support.apart_server import ApartServer
from tests.support.mqtt_packet_client import Device
from tests.support.otlp_collector import CollectedSpan, OtlpCollector, otlp_collector
from tests.support.server_process import PenstockServer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
ERROR = 2


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with otlp_collector() as running:
        yield running


def on(collector: OtlpCollector, ratio: float = 0, more: Mapping[str, object] | None = None) -> Mapping[str, object]:
    return {"tracing.endpoint": collector.url, "tracing.sample_ratio": ratio, **(more or {})}


def device(server: PenstockServer, name: str, version: int = 5) -> Device:
    client = Device(server.port, name, version)
    client.connect()
    return client


def headers_of(publish: Publish) -> dict[str, str]:
    return dict(publish.properties.user_properties)


def named(spans: list[CollectedSpan], name: str, topic: str) -> list[CollectedSpan]:
    return [span for span in spans if span.name == name and span.attributes["messaging.destination.name"] == topic]


def all_three(topic: str, number: int = 1) -> Any:
    """At least so many of each: each process sends its own, and two gateways may deliver the same message."""
    return lambda spans: all(len(named(spans, name, topic)) >= number for name in ("publish", "store", "deliver"))


@IN_ALL_TOPOLOGIES
@pytest.mark.parametrize(
    "qos", [pytest.param(0, marks=pytest.mark.nightly), 1, pytest.param(2, marks=pytest.mark.nightly)]
)
def test_a_message_is_traced_from_its_publisher_to_its_subscriber(
    penstock_server: ServerFactory, collector: OtlpCollector, topology: str, qos: int
) -> None:
    server = penstock_server(settings=on(collector, more={"tracing.service_name": "plant"}))
    subscriber, publisher = device(server, "subscriber"), device(server, "publisher")
    subscriber.subscribe("line/+", 0)
    given = (("unit", "C"), ("traceparent", TRACEPARENT), ("tracestate", "vendor=1"))
    publisher.publish("line/7", b"21.5", qos, user_properties=given)
    if qos == 1:
        publisher.next(PubAck)
    elif qos == 2:
        publisher.send(PubRel(publisher.next(PubRec).packet_id))
        publisher.next(PubComp)
    got = subscriber.next(Publish)
    spans = collector.wait_until(all_three("line/7"))
    (publish,), (store,) = named(spans, "publish", "line/7"), named(spans, "store", "line/7")
    (deliver,) = named(spans, "deliver", "line/7")
    assert {span.trace for span in spans} == {TRACE}
    assert publish.parent == PARENT
    assert store.parent == deliver.parent == publish.span
    assert (publish.role, store.role) == (("serve", "serve") if topology == "one process" else ("gateway", "store"))
    assert {span.service for span in spans} == {"plant"}
    assert {span.tracestate for span in spans} == {"vendor=1"}
    assert publish.attributes["messaging.client.id"] == "publisher"
    assert (deliver.attributes["messaging.client.id"], deliver.attributes["penstock.subscribers"]) == ("subscriber", 1)
    assert publish.attributes["messaging.mqtt.qos"] == qos
    assert publish.attributes["messaging.message.body.size"] == 4
    assert all(span.began_ns <= span.ended_ns for span in spans)
    assert list(got.properties.user_properties) == [
        ("unit", "C"),
        ("traceparent", f"00-{TRACE}-{publish.span}-01"),
        ("tracestate", "vendor=1"),
    ]
    server.terminate()


@IN_ALL_TOPOLOGIES
@pytest.mark.parametrize("version", [4, 5])
def test_a_gateway_begins_a_trace_for_messages_that_have_none(
    penstock_server: ServerFactory, collector: OtlpCollector, version: int
) -> None:
    server = penstock_server(settings=on(collector, 1.0))
    subscriber, old = device(server, "subscriber"), device(server, "old", 4)
    subscriber.subscribe("#", 1)
    old.subscribe("line/7")
    publisher = device(server, "publisher", version)
    for number in range(3):
        publisher.publish("line/7", b"%d" % number, 1)
        publisher.next(PubAck)
    got = [subscriber.next(Publish) for _ in range(3)]
    assert [old.next(Publish).payload for _ in range(3)] == [b"0", b"1", b"2"]
    spans = collector.wait_until(all_three("line/7", 3))
    by_id = {span.span: span for span in named(spans, "publish", "line/7")}
    assert len({span.trace for span in by_id.values()}) == 3
    for message in got:
        context = parse_traceparent(headers_of(message)["traceparent"].encode())
        assert context is not None
        assert context.is_sampled
        publish = by_id[context.span_id]
        assert (publish.parent, publish.trace) == ("", context.trace_id)
    for name in ("store", "deliver"):
        assert {span.parent for span in named(spans, name, "line/7")} == by_id.keys()


BAD = {
    "too short": TRACEPARENT[:-1],
    "too long": TRACEPARENT + "0",
    "no hexadecimal digits": TRACEPARENT.replace("a", "g"),
    "upper case": TRACEPARENT.upper(),
    "no trace": TRACEPARENT.replace(TRACE, "0" * 32),
    "no parent": TRACEPARENT.replace(PARENT, "0" * 16),
    "version ff": "ff" + TRACEPARENT[2:],
    "other text": "é" * 100,
    "empty": "",
}


@ONE_PROCESS
def test_a_bad_traceparent_is_passed_on_and_begins_nothing(
    penstock_server: ServerFactory, collector: OtlpCollector
) -> None:
    server = penstock_server(settings=on(collector, 1.0))
    subscriber, publisher = device(server, "subscriber"), device(server, "publisher")
    subscriber.subscribe("bad/#")
    twice = (("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT))
    not_sampled = (("traceparent", TRACEPARENT[:-1] + "0"),)
    cases = [*((("traceparent", text),) for text in BAD.values()), twice, not_sampled]
    for number, given in enumerate(cases):
        publisher.publish(f"bad/{number}", b"x", 1, user_properties=given)
        publisher.next(PubAck)
        assert subscriber.next(Publish).properties.user_properties == given
    in_payload = b"\x26\x00\x0btraceparent\x00\x37" + TRACEPARENT.encode()
    publisher.publish("good/payload", in_payload, 1, user_properties=(("traceparent", TRACEPARENT),))
    publisher.next(PubAck)
    spans = collector.wait_until(lambda found: bool(named(found, "store", "good/payload")))
    assert {span.attributes["messaging.destination.name"] for span in spans} == {"good/payload"}


@ONE_PROCESS
def test_no_more_messages_are_traced_than_allowed(penstock_server: ServerFactory, collector: OtlpCollector) -> None:
    server = penstock_server(settings=on(collector, 1.0, {"tracing.messages_per_s": 5}))
    subscriber, publisher = device(server, "subscriber"), device(server, "publisher")
    subscriber.subscribe("#")
    began_s = time.monotonic()
    for _ in range(2_000):
        publisher.publish("flood", b"x", 0, user_properties=(("traceparent", TRACEPARENT),))
    for _ in range(2_000):
        subscriber.next(Publish)
    server.terminate()
    took_s = time.monotonic() - began_s
    spans = collector.spans
    assert 5 <= len(spans) <= 5 * 2 + 5 * 2 * (took_s + 1)


@IN_ALL_TOPOLOGIES
def test_receipts_name_the_right_place(penstock_server: ServerFactory, collector: OtlpCollector) -> None:
    """The messages of a batch move when others in it get a `traceparent`."""
    server = penstock_server(settings=on(collector, 1.0))
    publisher = device(server, "publisher")
    wanted = (("penstock-receipt", "1"),)
    for number in range(20):
        publisher.publish(f"r/{number}", b"x", 1, user_properties=wanted if number % 2 else ())
    answers = [publisher.next(PubAck) for _ in range(20)]
    spans = collector.wait_until(lambda found: sum(span.name == "store" for span in found) == 20)
    stored_at = {
        str(span.attributes["messaging.destination.name"]): span.attributes["penstock.log_offset"]
        for span in spans
        if span.name == "store"
    }
    by_id = {answer.packet_id: dict(answer.properties.user_properties) for answer in answers}
    told = {f"r/{number}": by_id[number + 1] for number in range(1, 20, 2)}
    assert {topic: receipt for topic, receipt in told.items() if str(stored_at[topic]) not in receipt.values()} == {}


@pytest.mark.topologies("two gateways")
def test_a_consumer_and_a_publisher_of_the_sdk_are_in_the_trace(
    penstock_server: ServerFactory, collector: OtlpCollector
) -> None:
    server = penstock_server(settings=on(collector))
    assert isinstance(server, ApartServer)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    url = server.store_url.replace("tcp://", "penstock://")
    publisher = device(server, "publisher")

    async def consume() -> None:
        async with Client(url) as client, client.subscribe("line/#", group="g") as messages:
            publisher.publish("line/7", b"21.5", 1, user_properties=(("traceparent", TRACEPARENT),))
            await asyncio.to_thread(publisher.next, PubAck)
            message = await anext(aiter(messages))
            with consuming(message) as span:
                assert links_to([message])[0].context.trace_id == int(TRACE, 16)
                await client.publish("alarm", b"hot", headers={"unit": "C"})
                await client.publish_many([("alarm", b"2"), ("alarm", b"3")])
                async with client.batch() as batch:
                    batch.publish("alarm", b"4")
                    batch.publish("alarm", b"5")
                own = "00-" + "1" * 32 + "-" + "2" * 16 + "-00"
                await client.publish("alarm", b"own", headers={"traceparent": own})
            await message.ack()
            context = span.get_span_context()
            alarms = [alarm async for alarm in client.read("alarm", start="earliest")]
            found = [alarm.trace_context for alarm in alarms[:5]]
            assert {each.span_id for each in found if each is not None} == {f"{context.span_id:016x}"}
            assert None not in found
            assert dict(alarms[0].headers)["unit"] == "C"
            assert alarms[5].headers["traceparent"] == own

    asyncio.run(consume())
    (consumed,) = exporter.get_finished_spans()
    assert consumed.parent is not None
    spans = collector.wait_until(
        lambda spans: bool(named(spans, "publish", "line/7")) and len(named(spans, "store", "alarm")) >= 5
    )
    (publish,) = named(spans, "publish", "line/7")
    assert (publish.parent, publish.trace) == (PARENT, TRACE)
    assert f"{consumed.parent.span_id:016x}" == publish.span
    context = consumed.get_span_context()
    assert context is not None
    own_id = f"{context.span_id:016x}"
    assert {span.parent for span in named(spans, "store", "alarm")} == {own_id}


@IN_ALL_TOPOLOGIES
def test_shared_subscribers_are_in_the_trace(penstock_server: ServerFactory, collector: OtlpCollector) -> None:
    server = penstock_server(settings=on(collector))
    subscriber, publisher = device(server, "subscriber"), device(server, "publisher")
    subscriber.subscribe("$share/workers/line/#", 1)
    publisher.publish("line/7", b"21.5", 1, user_properties=(("traceparent", TRACEPARENT),))
    subscriber.next(Publish)
    spans = collector.wait_until(all_three("line/7"))
    (publish,), (deliver,) = named(spans, "publish", "line/7"), named(spans, "deliver", "line/7")
    assert deliver.parent == publish.span


@IN_ALL_TOPOLOGIES
def test_a_killed_gateway_loses_nothing_with_tracing_on(
    penstock_server: ServerFactory, collector: OtlpCollector
) -> None:
    server = penstock_server(settings=on(collector, 1.0, {"tracing.messages_per_s": 100_000}))
    publisher = device(server, "publisher", 4)
    acknowledged = 0
    for number in range(500):
        publisher.publish("kept", b"%d" % number, 1)
    for _ in range(300):
        publisher.next(PubAck)
        acknowledged += 1
    for gateway in server.gateways():
        gateway.send_signal(signal.SIGKILL)
    server.restart()
    reader = device(server, "reader")
    reader.subscribe("kept", 0, history="earliest")
    assert [reader.next(Publish).payload for _ in range(acknowledged)] == [b"%d" % n for n in range(acknowledged)]


@ONE_PROCESS
@pytest.mark.parametrize("fault", ["stalled", "away"])
def test_a_collector_that_does_not_answer_holds_nothing_up(
    penstock_server: ServerFactory, collector: OtlpCollector, fault: str
) -> None:
    settings = {**on(collector, 1.0), "tracing.messages_per_s": 100_000, "tracing.queue_spans": 64}
    if fault == "stalled":
        collector.holds.set()
    else:
        settings["tracing.endpoint"] = "http://127.0.0.1:9/v1/traces"
    server = penstock_server(settings=settings)
    subscriber, publisher = device(server, "subscriber"), device(server, "publisher", 4)
    subscriber.subscribe("#")
    slowest_s = 0.0
    for number in range(1_000):
        began_s = time.monotonic()
        publisher.publish("a", b"%d" % number, 1)
        publisher.next(PubAck)
        slowest_s = max(slowest_s, time.monotonic() - began_s)
    assert [subscriber.next(Publish).payload for _ in range(1_000)] == [b"%d" % n for n in range(1_000)]
    if fault == "stalled":
        collector.wait_for_requests(1)
    assert slowest_s < 2
    began_s = time.monotonic()
    server.terminate()
    assert time.monotonic() - began_s < 8
    said = re.findall(
        r"WARNING penstock\.tracing: spans are not exported to \S+: .*; check tracing\.endpoint", server.log_text()
    )
    assert len(said) <= 1
    assert "Transient error" not in server.log_text().replace("".join(said), "")
    if fault == "away":
        assert said


def test_without_the_packages_the_start_says_what_to_install(tmp_path: Any) -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "sys.modules['opentelemetry.sdk.resources'] = None\n"
        "from penstock.cli import main\n"
        f"sys.argv = ['penstock', 'serve', '--data', {str(tmp_path / 'data')!r}, '--listen', 'mqtt://127.0.0.1:0']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PENSTOCK_TRACING__ENDPOINT": "http://127.0.0.1:4318/v1/traces"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert re.search(r"tracing\.endpoint is set, but .*pip install 'penstock\[tracing\]'", done.stderr)
    assert "Traceback" not in done.stderr


@ONE_PROCESS
def test_off_nothing_of_it_is_loaded(penstock_server: ServerFactory) -> None:
    server = penstock_server()
    publisher = device(server, f"publisher-{secrets.token_hex(2)}")
    publisher.published("a", b"x")
    assert "protobuf" not in Path(f"/proc/{server.process.pid}/maps").read_text()
