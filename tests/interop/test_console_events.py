"""CloudEvents and webhooks by POST /api/v1/events: what subscribers get of them, and that each is stored once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.client import HTTPException
from itertools import cycle
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from penstock.console.api.cloud_events import event_in_json
from penstock.console.store import stored_once
from penstock.console.store.connection import StoreConnection
from penstock.console.store.stored_once import IdentifiedMessage
from tests.conftest import ServerFactory
from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.interop.test_console_api import Site
from tests.interop.test_console_process import ANYWHERE, passwords
from tests.support.console_process import Answered, WebClient, console_url
from tests.support.store_process import StoreProcess

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
EVENT = {"specversion": "1.0", "id": "1", "source": "/plants/7", "type": "com.example.measured"}
DATA = b'{"celsius" : 21.50, "n": 12345678901234567890}'
"""Not as an encoder writes it."""
SENDERS, BATCHES, OF_BATCH = 6, 12, 100
RULES = """
[[rule]]
users = ["root"]
allow = ["publish", "subscribe", "replay", "read_log", "admin"]
topics = ["#"]

[[rule]]
users = ["sender"]
allow = ["publish"]
topics = ["in/#"]

[[rule]]
users = ["reader"]
allow = ["subscribe", "replay"]
topics = ["in/#"]

[[rule]]
users = ["both"]
allow = ["publish", "subscribe", "replay"]
topics = ["in/#"]
"""


@pytest.fixture
def site(tmp_path: Path, start_client_store: StartStore) -> Iterator[Site]:
    site = Site(tmp_path, start_client_store())
    yield site
    site.console.close()


@pytest.fixture
def users(tmp_path: Path, start_client_store: StartStore) -> Iterator[Site]:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    file = passwords(tmp_path, root="s3c", sender="s3c", reader="s3c", both="s3c")
    site = Site(tmp_path, start_client_store(auth__password_file=file, auth__permissions_file=rules))
    yield site
    site.console.close()


def send(client: WebClient, event: Any, query: str = "", kind: str = STRUCTURED) -> Answered:
    return client.post("/events" + query, json.dumps(event).encode(), Content_Type=kind)


def hook(client: WebClient, topic: str, body: bytes, **headers: str) -> Answered:
    return client.post(f"/events?topic={topic}", body, **headers)


def receipts(answer: Answered) -> list[Any]:
    assert answer.status == 201, answer
    return list(answer.json.get("receipts", [answer.json]))


def offsets(answer: Answered) -> list[int]:
    """log_offset of each event of a request that is answered with receipts."""
    return [each["log_offset"] for each in receipts(answer)]


def stored(site: Site, topic: str) -> list[Any]:
    answer = site.client.get("/messages", filter=topic)
    assert answer.status == 200, answer
    return list(answer.json["messages"])


# --- content modes


def test_an_mqtt_5_subscriber_gets_a_cloud_event_in_binary_mode(penstock_server: ServerFactory) -> None:
    """From each content mode of HTTP the same."""
    server = penstock_server(settings=ANYWHERE)
    client = WebClient(console_url(server))
    subscriber = PahoClient(server.port).connect().subscribe("plant/#", 1)
    event = EVENT | {"subject": "plant/7 ä", "time": "2026-01-31T12:00:00.5+01:00", "region": "eu"}
    structured = json.dumps(event).encode()[:-1] + b', "data": ' + DATA + b" }"
    percent = event | {"id": "2", "subject": "plant/7%20%C3%A4"}
    headers = {f"ce-{name}": value for name, value in percent.items()}
    batch = b"[" + structured.replace(b'"id": "1"', b'"id": "3"') + b"]"
    for body, sent in (
        (structured, {"Content-Type": f"{STRUCTURED}; charset=UTF-8"}),
        (DATA, {"Content-Type": "application/json", **headers}),
        (batch, {"Content-Type": BATCH}),
    ):
        assert len(offsets(client.post("/events", body, **sent))) == 1
    for number, message in enumerate(subscriber.raw_messages(3), 1):
        assert (message.topic, bytes(message.payload)) == ("plant/7 ä", DATA)
        assert message.properties is not None
        sent_with = message.properties.json()
        assert sent_with["ContentType"] == "application/json"
        assert dict(sent_with["UserProperty"]) == event | {"id": str(number)}
    subscriber.leave()


@pytest.mark.parametrize("encode", [to_structured_event, to_binary_event])
def test_the_cloudevents_package_as_client(site: Site, encode: Any) -> None:
    time = datetime(2026, 1, 31, 12, tzinfo=UTC)
    attributes = {"type": "t", "source": "/s ä", "id": 'a"%1', "subject": "sdk/1", "time": time, "ext": "Euro € 😀"}
    for data, kind, payload in (
        ({"celsius": 21.5}, "application/json", '{"celsius": 21.5}'),
        ("21,5 °C", "text/plain", "21,5 °C"),
        (b"\xff\x00", "image/png", None),
    ):
        given = attributes | {"datacontenttype": kind, "id": f'a"%{kind}'}
        sent: HTTPMessage = encode(CloudEvent(given, data))
        answer = site.client.post("/events", sent.body, **sent.headers)
        assert answer.status == 201, answer
        message = site.client.get(f"/messages/{answer.json['message_id']}").json
        assert (message["payload"] if payload else message["payload_base64"]) == (payload or "/wA=")
        assert message["content_type"] == kind
        wanted = {**given, "specversion": "1.0", "time": "2026-01-31T12:00:00Z"}
        assert message["headers"] == {name: value for name, value in wanted.items() if name != "datacontenttype"}


def test_a_batch_has_an_outcome_for_each_event(site: Site) -> None:
    batch = [EVENT | {"id": "a"}, EVENT | {"id": ""}, EVENT | {"id": "b", "subject": "b/c"}, EVENT | {"id": "a"}]
    answer = send(site.client, batch, kind=BATCH)
    assert answer.status == 207
    first, nameless, second, again = answer.json["receipts"]
    kinds = [each["type"].removeprefix("urn:penstock:problem:") for each in (first, nameless, again)]
    assert kinds == ["no-topic", "bad-event", "no-topic"]
    assert [each["log_offset"] for each in stored(site, "b/c")] == [second["log_offset"]]
    whole = offsets(send(site.client, [EVENT | {"id": each} for each in "xyxx"], "?topic=b", BATCH))
    assert whole[0] == whole[2] == whole[3] != whole[1]
    assert [each["headers"]["id"] for each in stored(site, "b")] == ["x", "y"]
    assert send(site.client, [], kind=BATCH).json == {"receipts": []}


def test_the_document_has_each_content_type_with_an_example(site: Site) -> None:
    document = site.client.ask("GET", "/api/openapi.json").json
    operation = document["paths"]["/api/v1/events"]["post"]
    assert (operation["operationId"], set(operation["responses"])) == ("publish_events", {"201", "207", "default"})
    content = operation["requestBody"]["content"]
    assert {STRUCTURED, BATCH, "application/json", "application/octet-stream"} == set(content)
    for kind in (STRUCTURED, BATCH):
        for number, example in enumerate(content[kind]["examples"].values()):
            offsets(send(site.client, example["value"], f"?topic=examples/{number}", kind))
    page = site.client.ask("GET", "/api/docs").body.decode()
    assert all(name in page for name in ("POST", "/api/v1/events", "specversion", "data_base64", "webhook-id"))


# --- once


def test_an_event_is_stored_once_also_beyond_kills_of_console_and_store(site: Site) -> None:
    other = [EVENT | {"id": "2"}, EVENT | {"source": "/plants/8"}, EVENT]
    first = receipts(send(site.client, EVENT | {"data": 1}, "?topic=a/b"))
    many = receipts(send(site.client, other, "?topic=a/b", BATCH))
    elsewhere = receipts(send(site.client, EVENT, "?topic=a/c"))
    assert many[2:] == first
    for killed in (None, site.console, site.store, site.console):
        if killed is not None:
            killed.restart()
        binary = {f"ce-{name}": value for name, value in EVENT.items()}
        assert receipts(site.client.post("/events?topic=a/b", b"another body", **binary)) == first
        assert receipts(send(site.client, other, "?topic=a/b", BATCH)) == many
        assert receipts(send(site.client, EVENT, "?topic=a/c")) == elsewhere
    assert [each["log_offset"] for each in stored(site, "a/b")] == [each["log_offset"] for each in first + many[:2]]
    assert [each["payload"] for each in stored(site, "a/b")] == ["1", "", ""]
    assert len(stored(site, "a/c")) == 1


def test_events_whose_answer_a_kill_took_are_stored_once(site: Site) -> None:
    """Senders repeat each batch until it has an answer; console and store are killed meanwhile."""
    due: Queue[bool] = Queue(maxsize=1)
    outcomes: dict[str, int] = {}

    def send_until_answered(sender: int) -> None:
        for number in range(BATCHES):
            if not sender:
                due.put(True)  # the kill comes while batches are sent
            batch = [EVENT | {"id": f"{sender}-{number}-{event}"} for event in range(OF_BATCH)]
            while True:
                try:
                    answer = send(site.client, batch, "?topic=once", BATCH)
                except (OSError, HTTPException, IndexError):  # the console is starting
                    continue
                if answer.status == 201:
                    break
            outcomes.update(zip((each["id"] for each in batch), offsets(answer), strict=True))
        if not sender:
            due.put(False)

    senders = [threading.Thread(target=send_until_answered, args=(each,), daemon=True) for each in range(SENDERS)]
    for each in senders:
        each.start()
    parts = cycle([site.console, site.store])
    while due.get(timeout=TIMEOUT_S):
        next(parts).restart()
    for each in senders:
        each.join()
    found = pages(site, "once")
    assert len(found) == SENDERS * BATCHES * OF_BATCH
    assert {each["headers"]["id"]: each["log_offset"] for each in found} == outcomes


def pages(site: Site, topic: str) -> list[Any]:
    found: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        answer = site.client.get("/messages", filter=topic, limit=1_000, **cursor)
        assert answer.status == 200, answer
        found += answer.json["messages"]
        if answer.json["next"] is None:
            return found
        cursor = {"cursor": answer.json["next"]}


def test_the_same_event_at_the_same_time(site: Site) -> None:
    answers: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(offsets(send(site.client, EVENT, "?topic=race"))))
        for _ in range(20)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(stored(site, "race")) == 1
    assert answers == [answers[0]] * 20


def test_a_message_that_only_bears_the_key_of_an_event_is_not_taken_for_it(site: Site) -> None:
    send(site.client, EVENT, "?topic=forged/a")
    key = stored(site, "forged/a")[0]["key"]
    forged = {"topic": "forged/b", "key": key, "payload": "forged", "headers": {"id": "1", "source": "/other"}}
    assert site.client.post("/messages", forged).status == 201
    offsets(send(site.client, EVENT | {"data": "real"}, "?topic=forged/b"))
    assert [each["payload"] for each in stored(site, "forged/b")] == ["forged", '"real"']


def once_identified(number: int) -> IdentifiedMessage:
    return event_in_json(json.dumps(EVENT | {"id": str(number)}).encode(), "bounds")


@pytest.mark.asyncio
async def test_remembered_event_identities_are_bounded(running: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the console does not remember any more, it finds in the store."""
    monkeypatch.setattr(stored_once, "MOST_IDENTITIES", 10)
    once = stored_once.StoredOnce()
    async with StoreConnection(running.url.replace("tcp:", "penstock:")) as connection:
        first = await once.publish(connection, [once_identified(number) for number in range(100)])
        for number in range(100):
            assert await once.publish(connection, [once_identified(number)]) == [first[number]]
        await once.publish(connection, [once_identified(1_000)])
        assert len(once) <= 10


@pytest.mark.asyncio
async def test_an_event_that_comes_again_after_the_window_is_stored_again(
    running: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_once, "REMEMBERED_S", 0.001)
    once = stored_once.StoredOnce()
    async with asyncio.timeout(TIMEOUT_S), StoreConnection(running.url.replace("tcp:", "penstock:")) as connection:
        first = await once.publish(connection, [once_identified(1)])
        while await once.publish(connection, [once_identified(1)]) == first:
            pass


def test_namespaces_have_their_own_events(tmp_path: Path, start_client_store: StartStore) -> None:
    file = passwords(tmp_path, **{"acme/a": "s3c", "beta/b": "s3c"})
    store = start_client_store(auth__password_file=file, auth__namespace_separator="/")
    site = Site(tmp_path, store)
    try:
        first = {name: receipts(send(site.user(name), EVENT, "?topic=t")) for name in ("acme/a", "beta/b")}
        assert first["acme/a"] != first["beta/b"]
        for _ in range(2):
            assert first == {name: receipts(send(site.user(name), EVENT, "?topic=t")) for name in first}
            site.console.restart()
        for name in first:
            assert len(site.user(name).get("/messages", filter="t").json["messages"]) == 1
    finally:
        site.console.close()


# --- webhooks


def test_a_webhook_is_its_body(site: Site) -> None:
    given = {"webhook-id": "msg_1", "webhook-signature": "v1,abc", "X-GitHub-Event": "push", "X-Other": "x"}
    hook(site.client, "hooks/1", b"\xff\x00", Content_Type="image/png", **given)
    (message,) = stored(site, "hooks/1")
    assert (message["payload_base64"], message["content_type"]) == ("/wA=", "image/png")
    assert message["headers"] == {"webhook-id": "msg_1", "webhook-signature": "v1,abc", "x-github-event": "push"}


@pytest.mark.parametrize("header", ["webhook-id", "Idempotency-Key", "X-GitHub-Delivery"])
def test_a_webhook_with_an_id_is_stored_once(site: Site, header: str) -> None:
    first = offsets(hook(site.client, "hooks", b"1", **{header: "a"}))
    other = offsets(hook(site.client, "hooks", b"2", **{header: "b"}))
    site.console.restart()
    assert offsets(hook(site.client, "hooks", b"3", **{header: "a"})) == first
    assert offsets(hook(site.client, "hooks", b"4", **{header: "b"})) == other
    assert [each["payload"] for each in stored(site, "hooks")] == ["1", "2"]


def test_a_webhook_without_an_id_is_stored_each_time(site: Site) -> None:
    for _ in range(2):
        assert hook(site.client, "hooks", b"{}", Content_Type="application/json").status == 201
    assert len(stored(site, "hooks")) == 2
    refused = site.client.post("/events", b"{}", Content_Type="application/json")
    assert (refused.status, refused.kind) == (400, "no-topic")


def test_ids_of_webhooks_are_a_users_own(users: Site) -> None:
    for name in ("sender", "both"):
        assert hook(users.user(name), "in/1", name.encode(), webhook_id="1").status == 201
    assert {each["payload"] for each in users.user("root").get("/messages", filter="in/1").json["messages"]} == {
        "sender",
        "both",
    }


# --- who may


def test_rights_are_those_of_publishing(users: Site) -> None:
    sender, reader, both = users.user("sender"), users.user("reader"), users.user("both")
    first = offsets(send(sender, EVENT, "?topic=in/1"))
    for client, topic in ((sender, "other"), (reader, "in/1"), (reader, "in/2")):
        refused = send(client, EVENT, f"?topic={topic}")
        assert (refused.status, refused.kind) == (403, "not-permitted"), topic
    assert offsets(send(both, EVENT, "?topic=in/1")) == first
    users.console.restart()
    refused = send(users.user("reader"), EVENT, "?topic=in/1")  # the store has it, and this user may read it
    assert (refused.status, refused.kind) == (403, "not-permitted")
    assert offsets(send(users.user("both"), EVENT, "?topic=in/1")) == first
    some = send(users.user("both"), [EVENT, EVENT | {"subject": "other"}, EVENT | {"subject": "in/3"}], kind=BATCH)
    assert some.status == 207
    assert [each.get("status", 201) for each in some.json["receipts"]] == [400, 403, 201]
    assert users.console.client().post("/events?topic=in/1", b"x").status == 401


def test_rates_are_those_of_publishing(tmp_path: Path, start_client_store: StartStore) -> None:
    site = Site(tmp_path, start_client_store(), quota__client_messages_per_s=1, quota__burst_ms=5_000)
    try:
        batch = [EVENT | {"id": str(number)} for number in range(5)]
        first = offsets(send(site.client, batch, "?topic=t", BATCH))
        for event, kind in ((EVENT | {"id": "x"}, STRUCTURED), ([*batch, EVENT | {"id": "x"}] * 2, BATCH)):
            refused = send(site.client, event, "?topic=t", kind)
            assert (refused.status, refused.kind) == (429, "publishes-too-fast")
            assert int(refused.headers["retry-after"]) > 0
        assert offsets(send(site.client, batch, "?topic=t", BATCH)) == first
    finally:
        site.console.close()


def test_the_handshake_of_web_hooks(users: Site) -> None:
    path = "/events?topic=in/1"
    answer = users.user("sender").ask("OPTIONS", path, WebHook_Request_Origin="events.example")
    assert answer.status == 204
    assert (answer.headers["webhook-allowed-origin"], answer.headers["allow"]) == ("events.example", "OPTIONS, POST")
    assert "webhook-allowed-origin" not in users.user("sender").ask("OPTIONS", path).headers
    refused = users.console.client().ask("OPTIONS", path, WebHook_Request_Origin="events.example")
    assert refused.status == 401
    assert "webhook-allowed-origin" not in refused.headers


# --- what nobody should send


@pytest.mark.parametrize(
    ("query", "kind", "body", "status", "problem"),
    [
        ("", STRUCTURED, b"", 400, "bad-event"),
        ("", STRUCTURED, b'{"id": "\xff"}', 400, "bad-event"),
        ("", STRUCTURED, json.dumps(EVENT).encode()[:-1] + b', "data": "\xff"}', 400, "bad-event"),
        ("", STRUCTURED, b'{"data": ' + b"[" * 500_000 + b"]" * 500_000 + b"}", 400, "bad-event"),
        ("", STRUCTURED, json.dumps(EVENT).encode(), 400, "no-topic"),
        ("", f"{STRUCTURED}; charset=utf-16", json.dumps(EVENT).encode("utf-16"), 415, "unsupported-media-type"),
        ("", "application/cloudevents+avro", b"x", 415, "unsupported-media-type"),
        ("", BATCH, b"{}", 400, "bad-event"),
        ("", BATCH, b"[" * 500_000, 400, "bad-event"),
        ("", BATCH, json.dumps([EVENT] * 10_000).encode(), 400, "bad-event"),
        ("?topic=a/%2B", STRUCTURED, json.dumps(EVENT).encode(), 422, "bad-message"),
        ("?topic=%23", "text/plain", b"x", 422, "bad-message"),
        ("?topic=", "text/plain", b"x", 422, "bad-message"),
        ("?topic=$SYS/a", "text/plain", b"x", 422, "bad-message"),
        ("?topic=$dead/g/t", "text/plain", b"x", 422, "bad-message"),
        ("?topic=a%00", "text/plain", b"x", 422, "bad-message"),
        ("?topic=a&wait=1", "text/plain", b"x", 422, "unknown-parameter"),
    ],
)
def test_hostile_requests(lasting: Site, query: str, kind: str, body: bytes, status: int, problem: str) -> None:
    answer = lasting.client.post("/events" + query, body, Content_Type=kind)
    assert (answer.status, answer.kind) == (status, problem)
    assert len(answer.body) < 1_000
    assert lasting.client.get("/topics").json["topics"] == []


@pytest.mark.parametrize("identity", ["", "x" * 256, "a\tb"])
def test_webhook_ids_that_are_none(lasting: Site, identity: str) -> None:
    answer = hook(lasting.client, "hooks", b"x", webhook_id=identity)
    assert (answer.status, answer.kind) == (400, "bad-parameter")
    assert lasting.client.get("/topics").json["topics"] == []


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that store nothing."""
    folder = tmp_path_factory.mktemp("events")
    store = StoreProcess(folder)
    site = Site(folder, store)
    yield site
    site.console.close()
    store.close()
