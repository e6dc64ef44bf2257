"""A user without permission for all topics lands on those that its rules name, and learns of no others."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from penstock.console.views.topic_index import FRESH_S
from penstock.sync import Client
from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import Site
from tests.interop.test_console_process import passwords
from tests.support.console_process import WebClient, basic
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

RULES = """
[[rule]]
users = ["root"]
allow = ["publish", "retain", "subscribe", "replay", "read_log", "admin"]
topics = ["#", "$dead/#"]

[[rule]]
users = ["carol"]
deny = ["subscribe"]
topics = ["plant/hidden/temp"]

[[rule]]
users = ["alice"]
allow = ["subscribe", "replay"]
topics = ["devices/%u/#", "plant/+/temp", "one/topic", "hall/%c/#"]

[[rule]]
users = ["carol"]
allow = ["subscribe", "replay"]
topics = ["plant/+/temp", "one/#"]

[[rule]]
users = ["wild"]
allow = ["subscribe", "replay"]
topics = ["+/topic", "plant/+/+", "devices/bob", "plant/1/temp"]

[[rule]]
users = ["many"]
allow = ["subscribe", "replay"]
topics = [MANY]
"""
TOPICS = {
    "devices/alice/x": "alice wild-not",
    "devices/alice/y/z": "alice",
    "devices/bob/x": "bob",
    "plant/1/temp": "1",
    "plant/hidden/temp": "2",
    "plant/1/humidity": "3",
    "one/topic": "4",
    "one/other": "5",
    "hall/7/lamp": "6",
    "devices/alicia/x": "7",
}
READ_BY = {
    "alice": {"devices/alice/x", "devices/alice/y/z", "plant/1/temp", "plant/hidden/temp", "one/topic"},
    "carol": {"one/topic", "one/other"},
    "wild": {"one/topic", "plant/1/temp", "plant/hidden/temp", "plant/1/humidity"},
}
PREFIXES = {"alice": ["devices/alice/", "one/", "plant/"], "carol": ["one/"], "wild": ["", "devices/", "plant/"]}
USERS = ("root", "alice", "carol", "wild", "nobody", "many")


class Rules:
    """The permissions file of a store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write(RULES.replace("MANY", ", ".join(f'"many/{number:03d}/#"' for number in range(150))))

    def write(self, text: str) -> None:
        self.path.write_text(text)


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return Rules(tmp_path / "rules.toml")


def started_site(folder: Path, rules: Rules) -> Site:
    """With all topics, each retained and not."""
    file = passwords(folder, **dict.fromkeys(USERS, "s3c"))
    settings = {"auth.password_file": file, "auth.permissions_file": rules.path, "auth.client_ids": "%u-*"}
    site = Site(folder, StoreProcess(folder, settings=settings))
    root = site.user("root")
    for retain in (True, False):
        messages = [{"topic": topic, "payload": text, "retain": retain} for topic, text in TOPICS.items()]
        assert root.post("/messages", messages).status == 201
    return site


def end(site: Site) -> None:
    site.console.close()
    site.store.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that change nothing there."""
    folder = tmp_path_factory.mktemp("site")
    site = started_site(folder, Rules(folder / "rules.toml"))
    yield site
    end(site)


@pytest.fixture
def own_site(tmp_path: Path, rules: Rules) -> Iterator[Site]:
    site = started_site(tmp_path, rules)
    yield site
    end(site)


def tree(client: WebClient, prefix: str = "") -> dict[str, int]:
    """Each topic that the tree leads to, with its messages; the counts on the way are of these alone."""
    page = client.get("/topics", prefix=prefix).json
    found: dict[str, int] = {}
    for row in page["topics"]:
        assert row["topic"] == prefix + row["name"]
        below = tree(client, row["topic"] + "/") if row["topics_below"] else {}
        assert row["topics_below"] == len(below)
        found |= below
        if row["is_topic"]:
            found[row["topic"]] = row["messages"]
    assert page["topics_known"] == len(found)
    return found


def paged(client: WebClient, path: str, name: str, **query: Any) -> list[Any]:
    page = client.get(path, **query).json
    found = list(page[name])
    while page["next"]:
        page = client.get(path, after=page["next"], **query).json
        found += page[name]
    return found


def seen(site: Site, user: str, path: str) -> tuple[int, str]:
    """Status and text of a page."""
    connection = HTTPConnection(site.client.address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Authorization": basic(user, "s3c")})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("user", READ_BY)
def test_the_api_has_what_the_rules_allow_and_nothing_else(site: Site, user: str) -> None:
    client, topics = site.user(user), READ_BY[user]
    session = client.get("/session").json
    assert session["prefixes"] == PREFIXES[user]
    assert session["has_more_rules"] is False
    assert tree(client) == dict.fromkeys(topics, 2)
    for prefix in PREFIXES[user]:
        assert tree(client, prefix).keys() == {topic for topic in topics if topic.startswith(prefix)}
    for text in ("e", "temp", "alice", "bob", "hidden", "lamp"):
        found = paged(client, "/topics", "topics", search=text, limit=2)
        assert [row["topic"] for row in found] == sorted(topic for topic in topics if text in topic)
    for limit in (1, 2, 100):
        kept = paged(client, "/retained", "messages", filter_="#", limit=limit)
        assert {each["topic"]: each["payload"] for each in kept} == {topic: TOPICS[topic] for topic in topics}
        assert len(kept) == len(topics)
    for below in ("hall/", "devices/alicia/", "nowhere/"):
        if user != "wild":  # which may read `+/topic`: nowhere/topic, if there were one
            assert client.get("/topics", prefix=below).kind == "not-permitted"
    assert client.get("/topics/hall/7/lamp").status == 403
    assert client.get("/retained", filter_="hall/#").status == 403


@pytest.mark.parametrize("user", READ_BY)
def test_the_pages_name_nothing_else(site: Site, user: str) -> None:
    hidden = set(TOPICS) - READ_BY[user]
    for path in (
        "/",
        "/topics",
        "/topics?search=e",
        "/retained",
        *(f"/topics?prefix={each}" for each in PREFIXES[user]),
    ):
        status, text = seen(site, user, path)
        assert status == 200, text
        for topic in hidden:
            assert topic not in text
        assert "alicia" not in text
        assert "lamp" not in text
    overview = seen(site, user, "/")[1]
    assert f"You may read {len(READ_BY[user])} topics that have messages" in overview
    assert "Messages in" not in overview
    for topic in READ_BY[user]:
        assert f">{topic}<" in seen(site, user, f"/topics?search={topic}")[1]
        assert f">{topic}<" in seen(site, user, "/retained")[1]
    assert seen(site, user, "/topics?prefix=hall/7/")[0] == 403


def test_user_without_rights_to_read_is_told_so(site: Site) -> None:
    client = site.user("nobody")
    assert client.get("/session").json["readable"] == []
    assert client.get("/topics").kind == client.get("/retained", filter_="#").kind == "not-permitted"
    status, text = seen(site, "nobody", "/")
    assert status == 200
    assert "You may read 0 topics" in text


def test_the_number_of_prefixes_is_bounded(site: Site) -> None:
    session = site.user("many").get("/session").json
    assert session["prefixes"] == [f"many/{number:03d}/" for number in range(100)]
    assert session["has_more_rules"] is True
    assert "your rules have more" in seen(site, "many", "/topics")[1]
    assert site.user("many").get("/topics", prefix="many/149/").status == 200


def test_user_with_all_rights_sees_no_prefixes(site: Site) -> None:
    assert site.user("root").get("/session").json["readable"] == ["#"]
    assert tree(site.user("root")).keys() == set(TOPICS)
    assert "You may read" not in seen(site, "root", "/topics")[1]


def test_new_rules_hold_at_once_for_who_is_logged_in(own_site: Site, rules: Rules) -> None:
    """What was read for a user before is not shown by filters that it may no longer use."""
    begun = own_site.client.post("/session", {"user": "alice", "password": "s3c"})
    assert begun.json["prefixes"] == PREFIXES["alice"]
    client = own_site.console.client(Cookie=begun.headers["set-cookie"].partition(";")[0])
    first = client.get("/retained", filter_="#", limit=1).json["next"]
    assert tree(client).keys() == READ_BY["alice"]
    rules.write(RULES.replace("MANY", '"x"').replace('"devices/%u/#", "plant/+/temp"', '"hall/#"'))
    own_site.store.process.send_signal(signal.SIGHUP)
    wait_until(lambda: client.get("/session").json["prefixes"] == ["hall/", "one/"], TIMEOUT_S)
    assert tree(client).keys() == {"hall/7/lamp", "one/topic"}
    assert client.get("/topics", prefix="devices/alice/").status == 403
    assert client.get("/topics", search="alice").json["topics"] == []
    assert client.get("/retained", filter_="#", limit=1, after=first).kind == "bad-cursor"


def test_new_topics_appear_and_overlapping_filters_count_once(own_site: Site) -> None:
    root, wild = own_site.user("root"), own_site.user("wild")
    assert len(tree(wild)) == 4
    assert root.post("/messages", {"topic": "plant/topic", "payload": "x"}).status == 201
    assert root.post("/messages", {"topic": "new/topic", "payload": "x"}).status == 201
    wait_until(lambda: wild.get("/topics", search="new/topic").json["topics"], TIMEOUT_S + FRESH_S)
    assert len(tree(wild)) == 6


def test_tenants_see_their_own(tmp_path: Path, start_client_store: StartStore) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("""
[[rule]]
namespaces = ["acme", "other"]
allow = ["publish", "retain", "subscribe", "replay"]
topics = ["line/#", "%u/+/temp"]
""")
    names = ("acme/ann", "other/ann")
    file = passwords(tmp_path, **dict.fromkeys(names, "s3c"))
    settings = {"auth__password_file": file, "auth__permissions_file": rules, "auth__namespace_separator": "/"}
    site = Site(tmp_path, start_client_store(**settings))
    try:
        for name in names:
            with Client(site.store.url.replace("tcp://", "penstock://"), user=name, password="s3c") as client:
                tenant = name.partition("/")[0]
                for topic in (f"line/{tenant}", f"ann/{tenant}/temp"):
                    client.publish(topic, tenant, retain=True)
        for name in names:
            user, tenant = site.user(name), name.partition("/")[0]
            assert user.get("/session").json["prefixes"] == ["ann/", "line/"]
            assert tree(user) == {f"line/{tenant}": 1, f"ann/{tenant}/temp": 1}
            kept = user.get("/retained", filter_="#").json["messages"]
            assert sorted(each["payload"] for each in kept) == [tenant, tenant]
    finally:
        site.console.close()
