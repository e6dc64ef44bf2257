"""The HTTP API: publishing once, pages in both directions, streams, topics, and who sees what."""

from __future__ import annotations

import base64
import json
import signal
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from penstock.sync import Client
from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_process import passwords
from tests.support.console_process import Answered, ConsoleProcess, WebClient, basic
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

RULES = """
[[rule]]
users = ["root"]
allow = ["publish", "retain", "subscribe", "replay", "read_log", "admin"]
topics = ["#", "$dead/#"]

[[rule]]
deny = ["subscribe", "publish"]
topics = ["line/secret"]

[[rule]]
users = ["reader"]
allow = ["subscribe", "replay"]
topics = ["line/1", "line/2"]

[[rule]]
users = ["alice"]
allow = ["publish", "subscribe", "replay"]
topics = ["line/#", "plant/#"]
"""


class Site:
    """A store and a console; `client` asks it, as a user where it has users."""

    def __init__(self, folder: Path, store: StoreProcess, **settings: object) -> None:
        self.store = store
        self.console = ConsoleProcess(folder, store.url, {name.replace("__", "."): v for name, v in settings.items()})

    @property
    def client(self) -> WebClient:
        return self.console.client()

    def user(self, name: str) -> WebClient:
        return self.console.client(Authorization=basic(name, "s3c"))

    def publish(self, topic: str, *payloads: str, **options: Any) -> list[Any]:
        messages = [{"topic": topic, "payload": payload, **options} for payload in payloads]
        answer = self.client.post("/messages", messages)
        assert answer.status == 201, answer
        return list(answer.json["receipts"])


@pytest.fixture
def site(tmp_path: Path, start_client_store: StartStore) -> Iterator[Site]:
    site = Site(tmp_path, start_client_store())
    yield site
    site.console.close()


@pytest.fixture
def users(tmp_path: Path, start_client_store: StartStore) -> Iterator[Site]:
    """A store that judges its users."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    file = passwords(tmp_path, root="s3c", reader="s3c", alice="s3c")
    site = Site(tmp_path, start_client_store(auth__password_file=file, auth__permissions_file=rules))
    root = site.user("root")
    for topic in ("line/1", "line/2", "line/secret", "other", "plant/1", "plant/2"):
        assert root.post("/messages", {"topic": topic, "payload": f"of {topic}"}).status in (201, 403)
    yield site
    site.console.close()


def payloads(answer: Answered) -> list[str]:
    assert answer.status == 200, answer
    return [each["payload"] for each in answer.json["messages"]]


# --- publishing


def test_a_message_has_all_that_was_given(site: Site) -> None:
    given = {
        "topic": "line/7/temp",
        "payload": "21,5 °C",
        "qos": 2,
        "headers": [["unit", "C"], ["unit", "K"]],
        "key": "m-7",
        "tag": "temp",
        "content_type": "text/plain",
        "expires_after_s": 60,
        "response_topic": "answers",
        "correlation_data_base64": "AQI=",
    }
    receipt = site.client.post("/messages", given)
    assert receipt.status == 201
    found = site.client.get(f"/messages/{receipt.json['message_id']}").json
    assert found["headers"] == {"unit": "K"}
    assert found["user_properties"] == [["unit", "C"], ["unit", "K"]]
    for name in given.keys() - {"headers"}:
        assert found[name] == given[name]
    for name in ("log_offset", "queue_offset", "message_id"):
        assert found[name] == receipt.json[name]


def test_payloads(site: Site) -> None:
    client = site.client
    for body, stored in (
        ({"payload": "text"}, b"text"),
        ({"json": {"v": [1, 2.50]}}, b'{"v": [1, 2.5]}'),
        ({"payload_base64": base64.b64encode(b"\xff\0").decode()}, b"\xff\0"),
        ({}, b""),
    ):
        assert client.post("/messages", {"topic": "t", **body}).status == 201
        found = client.get("/messages", filter="t", order="desc", limit=1).json["messages"][0]
        raw = base64.b64decode(found["payload_base64"]) if "payload_base64" in found else found["payload"].encode()
        assert raw == stored
    assert client.post("/messages", {"topic": "t", "payload": "x", "json": 1}).kind == "bad-message"


def test_the_flush_policy_is_kept_and_retained_is_retained(site: Site) -> None:
    site.publish("state", "on", retain=True)
    (found,) = site.client.get("/messages", filter="state").json["messages"]
    assert found["retain"]


def test_a_delayed_message(site: Site) -> None:
    receipt = site.client.post("/messages", {"topic": "later", "payload": "x", "delay": 1}).json
    assert receipt["queue_offset"] is None
    assert payloads(site.client.get("/messages", filter="later")) == []
    wait_until(lambda: payloads(site.client.get("/messages", filter="later")) == ["x"], TIMEOUT_S)


@pytest.mark.parametrize(
    "fault",
    [{"expires_after_s": 1 << 32}, {"expires_after_s": 10**18}, {"payload_base64": "?"}, {"payload": "x", "json": 1}],
    ids=["expiry", "far expiry", "base64", "two payloads"],
)
def test_a_message_that_cannot_be_published_fails_alone(site: Site, fault: dict[str, Any]) -> None:
    alone = site.client.post("/messages", {"topic": "t", **fault})
    assert (alone.status, alone.kind) == (422, "bad-message")
    whole = site.client.post("/messages", [{"topic": "t", "payload": "1"}, {"topic": "t", **fault}, {"topic": "t"}])
    assert whole.status == 207
    first, wrong, last = whole.json["receipts"]
    assert wrong["status"] == 422
    assert wrong["detail"] == alone.json["detail"]
    assert (first["queue_offset"], last["queue_offset"]) == (0, 1)


def test_a_list_of_which_some_are_refused(users: Site) -> None:
    messages = [{"topic": topic, "payload": "x"} for topic in ("line/1", "line/secret", "line/2")]
    answer = users.user("alice").post("/messages", messages)
    assert answer.status == 207
    kinds = [each.get("type", "stored") for each in answer.json["receipts"]]
    assert kinds == ["stored", "urn:penstock:problem:not-permitted", "stored"]
    assert users.user("reader").post("/messages", messages[0]).kind == "not-permitted"


def test_every_receipt_that_was_given_before_a_kill_is_in_the_log(site: Site) -> None:
    """Four clients publish while the console is killed; what they were told is stored, is stored."""
    told: list[str] = []

    def publish(number: int) -> None:
        client = site.client
        for i in range(10_000):
            try:
                answer = client.post("/messages", {"topic": f"kill/{number}", "payload": str(i)})
            except (OSError, HTTPException):  # cut off before the answer, or in it
                return
            told.append(answer.json["message_id"])

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(told) > 200, TIMEOUT_S)
    site.console.kill()
    for thread in threads:
        thread.join(TIMEOUT_S)
    with Client(site.store.url.replace("tcp://", "penstock://")) as client:
        stored = {message.message_id for message in client.read("kill/#")}
    assert len(told) > 200
    assert set(told) <= stored


# --- pages


@pytest.mark.parametrize("topic_filter", ["a/b", "a/#", "a/+", "#"])
def test_pages_in_both_directions(site: Site, topic_filter: str) -> None:
    for number in range(0, 30, 10):
        site.publish("a/b", *(str(i) for i in range(number, number + 10)))
        site.publish("a2", "other")
    wanted = [str(i) for i in range(30)]
    for order, expected in (("asc", wanted), ("desc", wanted[::-1])):
        query: dict[str, Any] = {"filter": topic_filter, "order": order, "limit": 7}
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = site.client.get("/messages", **query, **cursor)
            assert len(page.json["messages"]) <= 7
            found += [payload for payload in payloads(page) if payload != "other"]
            if page.json["next"] is None:
                break
            cursor = {"cursor": page.json["next"]}
        assert found == expected


def test_a_part_of_history(site: Site) -> None:
    receipts = site.publish("a/b", *map(str, range(10)))
    get = site.client.get
    assert payloads(get("/messages", filter="a/b", start="@3", stop="@5")) == ["3", "4"]
    assert payloads(get("/messages", filter="a/b", start="@3", stop="@5", order="desc")) == ["4", "3"]
    assert payloads(get("/messages", filter="a/b", start=receipts[8]["log_offset"])) == ["8", "9"]
    assert payloads(get("/messages", filter="a/b", start="-1h", order="desc", limit=2)) == ["9", "8"]
    assert payloads(get("/messages", filter="a/b", stop="-1h")) == []
    assert payloads(get("/messages", filter="nothing", order="desc")) == []


def test_by_key_and_by_tag(site: Site) -> None:
    site.publish("a/b", *map(str, range(5)), key="k")
    site.publish("a/b", "tagged", tag="t")
    first = site.client.get("/messages", filter="#", key="k", limit=3)
    assert payloads(first) == ["4", "3", "2"]
    second = site.client.get("/messages", filter="#", key="k", limit=3, cursor=first.json["next"])
    assert payloads(second) == ["1", "0"]
    for order in ("asc", "desc"):
        assert payloads(site.client.get("/messages", filter="a/b", tag="t", order=order)) == ["tagged"]


# --- streams


def test_ndjson(site: Site) -> None:
    site.publish("a/b", *map(str, range(3_000)))
    answer = site.client.ask("GET", "/messages?filter=a/b", Accept="application/x-ndjson")
    assert [json.loads(line)["payload"] for line in answer.body.splitlines()] == [str(i) for i in range(3_000)]
    some = site.client.ask("GET", "/messages?filter=a/b&limit=1500", Accept="application/x-ndjson")
    assert some.body.count(b"\n") == 1_500


def test_events_go_on_live_without_a_gap_or_a_repeat(site: Site) -> None:
    site.publish("a/b", "0", "1", "2")
    seen: list[str] = []
    last: dict[str, str] = {}
    for until in (2, 5, 9):
        with site.client.events("/messages?filter=a/b&start=earliest", **last) as events:
            while len(seen) < until:
                name, message = next(events)
                seen.append(message["payload"])
                last = {"Last_Event_ID": name}
                if len(seen) in (3, 6):
                    site.publish("a/b", *(str(len(seen) + i) for i in range(3)))
    assert seen == [str(i) for i in range(9)]


@pytest.mark.parametrize("topic_filter", ["a/b", "%23"])
def test_events_outlive_the_store(site: Site, topic_filter: str) -> None:
    with site.client.events(f"/messages?filter={topic_filter}") as events:
        site.publish("a/b", "0")
        assert next(events)[1]["payload"] == "0"
        site.store.kill()
        site.store.start()
        wait_until(lambda: site.client.get("/health").status == 200, TIMEOUT_S)
        site.publish("a/b", "1")
        assert next(events)[1]["payload"] == "1"


def test_a_permission_is_taken_away_during_a_stream(users: Site, tmp_path: Path) -> None:
    root = users.user("root")
    with users.user("reader").events("/messages?filter=line/1") as events:
        root.post("/messages", {"topic": "line/1", "payload": "before"})
        assert next(events)[1]["payload"] == "before"
        (tmp_path / "rules.toml").write_text(RULES.replace('"line/1", ', ""))
        users.store.process.send_signal(signal.SIGHUP)
        wait_until(lambda: users.user("reader").get("/messages", filter="line/1").status == 403, TIMEOUT_S)
        root.post("/messages", {"topic": "line/1", "payload": "behind"})
        name, problem = next(events)
        assert name == "problem"
        assert problem["type"] == "urn:penstock:problem:not-permitted"


# --- topics


def test_the_tree_of_topics(site: Site) -> None:
    for topic in ("a/b", "a/b/c", "a-b", "a/d/e/f", "Große/Halle", "a//x"):
        site.publish(topic, "1", "2")

    def tree(**query: Any) -> list[tuple[str, bool, int, int | None]]:
        rows = site.client.get("/topics", **query).json["topics"]
        return [(row["topic"], row["is_topic"], row["topics_below"], row["messages"]) for row in rows]

    assert tree() == [("Große", False, 1, None), ("a-b", True, 0, 2), ("a", False, 4, None)]
    assert tree(prefix="a/") == [("a/", False, 1, None), ("a/b", True, 1, 2), ("a/d", False, 1, None)]
    assert [row[0] for row in tree(search="halle")] == ["Große/Halle"]
    assert [row[0] for row in tree(search="Halle", prefix="a/")] == []
    first = site.client.get("/topics", search="a", limit=2)
    second = site.client.get("/topics", search="a", limit=9, after=first.json["next"])
    found = [row["topic"] for page in (first, second) for row in page.json["topics"]]
    assert found == sorted(found)
    assert len(found) == 6
    one = site.client.get("/topics/a/b/c").json
    assert (one["messages"], one["last"]["payload"]) == (2, "2")
    assert site.client.get("/topics/a/nothing").status == 404
    assert site.client.get("/topics", prefix="a/", last="true").json["topics"][1]["last"]["payload"] == "2"


def test_a_user_sees_what_he_may_subscribe_to(users: Site) -> None:
    reader, alice = users.user("reader"), users.user("alice")
    assert payloads(reader.get("/messages", filter="line/1")) == ["of line/1"]
    for path in ("/messages?filter=other", "/messages?filter=line/%23", "/messages?filter=%23"):
        for accept in ("application/json", "application/x-ndjson", "text/event-stream"):
            refused = reader.ask("GET", path, Accept=accept)
            assert (refused.status, refused.kind) == (403, "not-permitted"), (path, accept)
    for path in ("/topics?prefix=plant/", "/topics?search=plant&prefix=plant/", "/topics/other", "/topics/line/secret"):
        assert reader.ask("GET", path).kind == "not-permitted"
    for path in ("/topics?search=i", "/topics?prefix=line/"):
        assert [row["topic"] for row in reader.ask("GET", path).json["topics"]] == ["line/1", "line/2"]
    assert alice.get("/topics", prefix="line/").kind == "not-permitted"  # it has a topic that is denied
    assert [row["topic"] for row in alice.get("/topics", prefix="plant/").json["topics"]] == ["plant/1", "plant/2"]
    assert reader.get("/topics/line/2").json["messages"] == 1
    (other,) = users.user("root").get("/messages", filter="other").json["messages"]
    assert reader.get(f"/messages/{other['message_id']}").kind == "not-permitted"


def test_single_group_is_as_in_the_list(users: Site) -> None:
    root, reader = users.user("root"), users.user("reader")
    url = users.store.url.replace("tcp://", "penstock://")
    with Client(url, user="root", password="s3c") as client:
        for name, topic_filter in (("billing", "line/1"), ("several", "line/1"), ("several", "other")):
            with client.subscribe(topic_filter, group=name, start="now"):
                pass
    (listed,) = root.get("/groups", name="billing").json["groups"]
    assert root.get("/groups/billing").json == listed
    assert root.get("/groups/billing", filter="line/1").json == listed == reader.get("/groups/billing").json
    assert root.post("/groups/billing/pause?filter=line/1").status == 200
    assert root.get("/groups/billing").json["paused"]
    refused = root.get("/groups/several")
    assert (refused.status, refused.kind) == (422, "several-groups")
    assert "'line/1'" in refused.json["detail"]
    assert "'other'" in refused.json["detail"]
    for filter_ in ("line/1", "other"):
        assert root.get("/groups/several", filter=filter_).json["topic_filter"] == filter_
    assert reader.get("/groups/several").json["topic_filter"] == "line/1"  # it sees no other one
    for query in ({"filter": "other"}, {"filter": "line/2"}):
        assert reader.get("/groups/several", **query).kind == "not-found"
    missing = root.get("/groups/nobody")
    assert (missing.status, missing.kind) == (404, "not-found")
