"""Users of the SDK at a store: who may come in, and what each may publish, read and consume."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sdk.errors import CannotConnect, NotAllStored, NotPermitted
from penstock.sdk.message import Receipt
from penstock.spark.errors import RequestFailed
from penstock.spark.store_options import store_of
from penstock.sync import Client
from store.wire.log_messages import LogRead, ReadLog
from tests.interop.programs import TIMEOUT_S
from tests.support.mqtt_packet_client import set_passwords
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

SAME = "no such user, or wrong credentials"  # whether there is such a user or not
RULES = """
[[rule]]
users = ["root"]
allow = ["publish", "retain", "subscribe", "replay", "read_log"]
topics = ["#", "$dead/#", "$SYS/#"]

[[rule]]
deny = ["subscribe"]
topics = ["line/secret"]

[[rule]]
users = ["alice"]
allow = ["publish", "subscribe", "replay"]
topics = ["line/#", "users/%u/#"]

[[rule]]
users = ["alice"]
allow = ["retain"]
topics = ["line/1"]

[[rule]]
users = ["reader"]
allow = ["subscribe", "replay"]
topics = ["line/1", "line/2"]
"""


class Site:
    """A store with users, and clients that are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passwords, self.rules = folder / "passwords", folder / "rules.toml"
        self.set_passwords(alice="a", reader="r", root="0")
        self.rules.write_text(RULES)
        settings = {"auth.password_file": self.passwords, "auth.permissions_file": self.rules, "wire.token": "token"}
        self.store = StoreProcess(folder, settings=settings)
        self._clients: list[Client] = []

    def set_passwords(self, **users: str) -> None:
        set_passwords(self.passwords, **users)

    def client(self, user: str, password: str, **options: Any) -> Client:
        url = self.store.url.replace("tcp://", "penstock://")
        client = Client(url, token="token", user=user, password=password, **{"timeout_s": TIMEOUT_S} | options)
        client.connect()
        self._clients.append(client)
        return client

    def alice(self) -> Client:
        return self.client("alice", "a")

    def root(self) -> Client:
        return self.client("root", "0")

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.store.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def payloads(client: Client, topic_filter: str) -> list[bytes]:
    return [each.payload for each in client.read(topic_filter, stop="now")]


def refused(error: pytest.ExceptionInfo[NotPermitted]) -> tuple[str, str]:
    return error.value.action, error.value.topic


def test_sdk_logins_of_users(site: Site) -> None:
    site.alice().publish("line/1", b"x")
    for user, password in (("alice", "wrong"), ("nobody", "a"), ("", "")):
        with pytest.raises(CannotConnect, match=r"refused the connection \(user\)"):
            site.client(user, password, timeout_s=5)
    url = site.store.url.replace("tcp://", "penstock://")
    with pytest.raises(CannotConnect, match="not the token of a client"):
        Client(url, token="wrong", user="alice", password="a").connect()
    said = re.findall(r"not let in \(user\): (.*);", site.store.log_text())
    assert said == [SAME, SAME, "this store authenticates users: give user= and password="]


def test_publishing(site: Site) -> None:
    alice = site.alice()
    for topic in ("line/1", "users/alice/x"):
        alice.publish(topic, b"1")
    for topic, retain, action in (
        ("other/1", False, "publish"),
        ("users/bob/x", False, "publish"),
        ("line/2", True, "retain"),
    ):
        with pytest.raises(NotPermitted, match=f"this user may not {action} {topic}") as caught:
            alice.publish(topic, b"2", retain=retain)
        assert refused(caught) == (action, topic)
    alice.publish("line/1", b"3", retain=True)
    with pytest.raises(NotPermitted):
        alice.publish("other/1", b"later", delay=3600)
    assert payloads(site.root(), "#") == [b"1", b"1", b"3"]


def test_messages_sent_together_are_judged_one_by_one(site: Site) -> None:
    alice = site.alice()
    sent = [alice.send(topic, b"x") for _ in range(50) for topic in ("line/1", "other", "line/2")]
    outcomes = [type(each.exception(TIMEOUT_S)) for each in sent]
    assert outcomes == [type(None), NotPermitted, type(None)] * 50
    assert payloads(site.root(), "#") == [b"x"] * 100


def test_reading(site: Site) -> None:
    root, alice = site.root(), site.alice()
    receipts = {topic: root.publish(topic, topic.encode(), key="k") for topic in ("line/1", "line/secret", "other")}
    assert payloads(alice, "line/1") == [b"line/1"]
    for topic_filter in ("line/#", "#", "other", "line/secret", "+/1"):
        with pytest.raises(NotPermitted) as caught:
            payloads(alice, topic_filter)
        assert refused(caught) == ("subscribe", topic_filter)
    assert alice.get(receipts["line/1"].message_id).payload == b"line/1"
    for topic in ("line/secret", "other"):
        with pytest.raises(NotPermitted):
            alice.get(receipts[topic].message_id)
    assert [each.payload for each in alice.find(key="k", topic="line/1")] == [b"line/1"]
    for topic_filter in ("", "line/#"):
        with pytest.raises(NotPermitted):
            list(alice.find(key="k", topic=topic_filter))
    assert len(list(root.find(key="k"))) == 3


def test_a_reader_that_waits_is_judged_too(site: Site) -> None:
    alice = site.alice()
    with pytest.raises(NotPermitted):
        next(iter(alice.read("other", start="now")))


def test_groups(site: Site) -> None:
    root, alice = site.root(), site.alice()
    root.publish("line/1", b"for alice")
    with alice.subscribe("line/1", group="workers") as messages:
        message = next(iter(messages))
        assert message.payload == b"for alice"
        message.ack()
    with pytest.raises(NotPermitted) as caught, alice.subscribe("other", group="workers"):
        pass
    assert refused(caught) == ("subscribe", "other")
    reader = site.client("reader", "r")
    with pytest.raises(NotPermitted):
        reader.publish("line/1", b"x")


def test_delayed_messages(site: Site) -> None:
    root, alice = site.root(), site.alice()
    secret = root.publish("other", b"x", delay=3_600)
    own = alice.publish("line/1", b"x", delay=3_700)
    assert [each.topic for each in alice.delayed()] == ["line/1"]
    assert [each.topic for each in root.delayed()] == ["other", "line/1"]
    (pending,) = [each for each in root.delayed() if each.topic == "other"]
    assert pending.due_at == secret.due_at
    assert own.cancel()


def test_spark_reads_the_whole_log_or_nothing(site: Site) -> None:
    url = site.store.url.replace("tcp://", "penstock://")
    for user, password, may in (("root", "0", True), ("alice", "a", False)):
        options = {"token": "token", "user": user, "password": password, "storetimeout": "0"}
        with store_of(url, options).connect() as connection:
            if may:
                connection.call(ReadLog(0, 1 << 20), LogRead)
            else:
                with pytest.raises(RequestFailed, match=r'rule.*users = \["alice"\].*"read_log"'):
                    connection.call(ReadLog(0, 1 << 20), LogRead)


def test_permissions_are_read_again(site: Site) -> None:
    alice, root = site.alice(), site.root()
    alice.publish("line/1", b"before")
    site.rules.write_text(RULES.replace('"line/#"', '"line/2"'))
    site.store.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reloaded: authentication" in site.store.log_text(), TIMEOUT_S)
    with pytest.raises(NotPermitted):
        alice.publish("line/1", b"after")
    alice.publish("line/2", b"after")
    assert payloads(root, "line/+") == [b"before", b"after"]


def test_a_changed_password_ends_the_connection(site: Site) -> None:
    alice = site.client("alice", "a", timeout_s=3)
    site.set_passwords(alice="new")
    site.store.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reloaded: authentication" in site.store.log_text(), TIMEOUT_S)
    wait_until(lambda: "not let in (user)" in site.store.log_text(), TIMEOUT_S)
    site.client("alice", "new").publish("line/1", b"x")
    del alice


def test_without_users_all_is_allowed(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path, settings={"wire.client_token": "token"})
    try:
        with Client(store.url.replace("tcp://", "penstock://"), token="token", timeout_s=TIMEOUT_S) as client:
            client.publish("a", b"x")
            assert payloads(client, "#") == [b"x"]
    finally:
        store.close()


def test_publish_many_names_messages_that_are_not_permitted(site: Site) -> None:
    alice = site.alice()
    topics = ["line/1", "other/1", "users/alice/x", "users/bob/x", "line/1"] * 3
    with pytest.raises(
        NotAllStored, match=r"6 of 15 messages were not stored, the first because: .* publish other/1"
    ) as caught:
        alice.publish_many([(topic, b"%d" % number) for number, topic in enumerate(topics)])
    outcomes = caught.value.outcomes
    assert [isinstance(each, NotPermitted) for each in outcomes] == [
        topic[0] == "o" or "bob" in topic for topic in topics
    ]
    stored = [message.payload for message in site.root().read("#", stop="now")]
    assert sorted(stored) == sorted(b"%d" % n for n, outcome in enumerate(outcomes) if isinstance(outcome, Receipt))
    with pytest.raises(NotAllStored, match="2 of 2 messages"):
        alice.publish_many([("other/1", b"x")] * 2)
