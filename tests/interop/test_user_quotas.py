"""A user's quotas in a store, over any gateway or SDK client, and across SIGKILL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.packets import (
    PubAck,
    PubRec,
    PubRel,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.part import Part
from penstock.errors import PenstockError
from penstock.sync import Client
from tests.support.mqtt_packet_client import Device, until, write_passwords
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

OK, EXCEEDED = ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED
USERS = {"alice": "a", "bob": "b"}
LIMITS = {"sessions": 3, "subscriptions": 4, "topics": 4, "delayed": 2, "retained": 2, "retained_bytes": 100}
GATEWAYS = 2


class Site:
    """A store that knows users alice and bob, and two gateways, as processes of their own."""

    def __init__(self, folder: Path, *limited: str) -> None:
        self._begin(folder, USERS, {f"quota.user_{name}": LIMITS[name] for name in limited})

    def _begin(self, folder: Path, users: dict[str, str], quotas: dict[str, int], separator: str = "") -> None:
        passwords = write_passwords(folder / "passwords", users)
        auth = {"auth.password_file": passwords, "auth.allow_anonymous": "true", "auth.namespace_separator": separator}
        self.store = StoreProcess(folder, settings=auth | quotas)
        self.ports = [free_port() for _ in range(GATEWAYS)]
        self.gateways = [
            Part(
                folder / f"gateway-{port}.log",
                ["gateway", "--store", self.store.url, "--listen", f"mqtt://127.0.0.1:{port}"],
                auth,
            )
            for port in self.ports
        ]

    def device(
        self, client_id: str, gateway: int = 0, user: str = "alice", version: int = 5, expiry_s: int = 3_600
    ) -> Device:
        device = Device(self.ports[gateway], client_id, version)
        fields: dict[str, Any] = {"session_expiry_interval": expiry_s} if version == 5 else {}
        self.answer = device.connect(*self.who(user), clean_start=not expiry_s, **fields)
        return device

    def tries(self, client_id: str, gateway: int) -> ReasonCode:
        """What alice's client is told that comes and goes."""
        self.device(client_id, gateway).close()
        return self.answer.reason_code

    @staticmethod
    def who(user: str) -> tuple[str, ...]:
        return (user, user[:1]) if user else ()

    def client(self, user: str = "alice") -> Client:
        client = Client(self.store.url.replace("tcp://", "penstock://"), user=user, password=user[:1])
        client.connect()
        return client

    def kill_all(self) -> None:
        for part in (self.store, *self.gateways):
            part.kill()
        for part in (self.store, *self.gateways):
            part.start()

    def close(self) -> None:
        for part in (*self.gateways, self.store):
            part.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def start(*limited: str) -> Site:
        sites.append(Site(tmp_path, *limited))
        return sites[-1]

    yield start
    for site in sites:
        site.close()


def published(device: Device, topic: str, payload: bytes = b"x", retain: bool = False) -> PubAck:
    device.publish(topic, payload, 1, retain=retain)
    return device.next(PubAck)


def subscribed(device: Device, *topic_filters: str) -> SubAck:
    wanted = tuple(SubscriptionRequest(each, QoS.AT_LEAST_ONCE) for each in topic_filters)
    device.send(Subscribe(device.next_id(), wanted))
    return device.next(SubAck)


def unsubscribed(device: Device, topic_filter: str) -> None:
    device.send(Unsubscribe(device.next_id(), (topic_filter,)))
    device.next(UnsubAck)


def test_sessions_connected_or_not(start: Callable[..., Site]) -> None:
    site = start("sessions")
    kept = [site.device("one", 0), site.device("two", 1, expiry_s=0)]
    site.device("three", 1).close()
    kept.append(site.device("four", 0))
    assert site.answer.reason_code is EXCEEDED
    assert site.answer.properties.reason_string is not None
    assert "quota.user_sessions: user alice has 3 sessions" in site.answer.properties.reason_string
    site.device("four", 1, version=4)
    assert site.answer.reason_code is ReasonCode.SERVER_UNAVAILABLE
    site.device("three", 0)  # one that is there is not one more
    assert site.answer.session_present
    site.device("b", user="bob")
    assert site.answer.reason_code is OK
    kept[1].close()  # and with it that session ends
    until(lambda: site.tries("four", 0) is OK)
    site.kill_all()
    until(lambda: site.tries("five", 0) is EXCEEDED)
    site.device("four", 1, expiry_s=0).close()
    until(lambda: site.tries("five", 0) is OK)


def test_subscriptions_of_sessions_that_are_away_as_well(start: Callable[..., Site]) -> None:
    site = start("subscriptions")
    away = site.device("away", 0)
    assert subscribed(away, "a/1", "a/2", "a/1").reason_codes == (1, 1, 1)
    away.close()
    clean, durable = site.device("clean", 1, expiry_s=0), site.device("durable", 0)
    assert subscribed(clean, "b").reason_codes == (1,)
    answer = subscribed(durable, "c", "$share/g/t", "c")
    assert answer.reason_codes == (1, EXCEEDED, 1)
    assert "quota.user_subscriptions: user alice has 4 subscriptions" in (answer.properties.reason_string or "")
    assert subscribed(clean, "d", "b").reason_codes == (EXCEEDED, 1)
    assert subscribed(site.device("old", 1, version=4), "e").reason_codes == (0x80,)
    assert subscribed(site.device("b", user="bob"), "a", "b", "c", "d").reason_codes == (1,) * 4
    assert subscribed(site.device("n", user=""), "a", "b", "c", "d", "e").reason_codes == (1,) * 4 + (EXCEEDED,)
    unsubscribed(clean, "b")
    until(lambda: subscribed(durable, "d").reason_codes == (1,))
    unsubscribed(durable, "d")
    assert subscribed(durable, "e").reason_codes == (1,)
    site.kill_all()
    again = site.device("durable", 1)
    assert subscribed(again, "f").reason_codes == (EXCEEDED,)
    away = site.device("away", 0, expiry_s=0)
    away.close()
    until(lambda: subscribed(again, "f", "g").reason_codes == (1, 1))


def test_topics_that_a_user_makes(start: Callable[..., Site]) -> None:
    site = start("topics")
    one, two = site.device("one", 0), site.device("two", 1)
    assert [published(one, "t/1").reason_code, published(two, "t/2").reason_code] == [OK, OK]
    assert published(site.device("b", user="bob"), "bobs").reason_code is OK
    one.publish("t/3")
    for _ in range(3):
        assert published(one, "bobs").reason_code is OK  # it is there
    with site.client() as client:
        client.publish("t/4", b"1")
        client.publish("t/4", b"2")
        with pytest.raises(PenstockError, match=r"quota\.user_topics: user alice has 4 topics"):
            client.publish("t/5", b"1")
    for device in (one, two):
        refused = published(device, "t/6")
        assert refused.reason_code is EXCEEDED
        assert "quota.user_topics: user alice has 4 topics" in (refused.properties.reason_string or "")
        assert [published(device, f"t/{number}").reason_code for number in range(1, 5)] == [OK] * 4
        assert published(device, "t/6").reason_code is EXCEEDED
    old = site.device("old", 1, version=4)
    old.published("t/6")  # acknowledged, and dropped
    assert published(site.device("b", user="bob"), "t/6").reason_code is OK
    assert published(one, "t/6").reason_code is OK
    site.kill_all()
    again = site.device("one", 1)
    assert [published(again, each).reason_code for each in ("t/1", "t/7")] == [OK, EXCEEDED]


def test_retained_messages_and_their_bytes(start: Callable[..., Site]) -> None:
    site = start("retained", "retained_bytes")
    one, two = site.device("one", 0), site.device("two", 1)
    assert published(one, "r/1", bytes(40), retain=True).reason_code is OK
    assert published(two, "r/2", bytes(40), retain=True).reason_code is OK
    refused = published(one, "r/3", b"x", retain=True)
    assert refused.reason_code is EXCEEDED
    assert "quota.user_retained: user alice has 2 retained messages" in (refused.properties.reason_string or "")
    refused = published(two, "r/1", bytes(80), retain=True)
    assert refused.reason_code is EXCEEDED
    assert "quota.user_retained_bytes: user alice has 86 bytes" in (refused.properties.reason_string or "")
    assert published(two, "r/1", bytes(50), retain=True).reason_code is OK
    with site.client() as client:
        with pytest.raises(PenstockError, match=r"quota\.user_retained: "):
            client.publish("r/3", b"1", retain=True)
        client.publish("r/2", b"", retain=True)
        client.publish("r/4", b"1", retain=True)
    assert published(one, "r/3", b"x", retain=True).reason_code is EXCEEDED
    site.kill_all()
    again = site.device("one", 1)
    assert published(again, "r/3", b"x", retain=True).reason_code is EXCEEDED
    again.publish("r/4", b"", retain=True)
    again.publish("r/3", b"x", 2, retain=True)
    again.next(PubRec)
    again.send(PubRel(again._next_id))
    assert published(site.device("b", user="bob"), "r/1", b"x", retain=True).reason_code is OK  # it is his now
    assert published(site.device("three", 0), "r/5", b"x", retain=True).reason_code is OK


def test_delayed_messages_until_they_are_sent(start: Callable[..., Site]) -> None:
    site = start("delayed", "retained")
    one, two = site.device("one", 0), site.device("two", 1)
    assert published(one, "$delayed/3600/d").reason_code is OK
    with site.client() as client:
        client.publish("d", b"1", delay=3)
        with pytest.raises(PenstockError, match=r"quota\.user_delayed: user alice has 2 delayed messages"):
            client.publish("d", b"1", delay=3)
    refused = published(two, "$delayed/3600/e")
    assert refused.reason_code is EXCEEDED
    assert "quota.user_delayed: user alice has 2 delayed messages" in (refused.properties.reason_string or "")
    site.kill_all()
    again = site.device("one", 1)
    until(lambda: published(again, "$delayed/3600/e", retain=True).reason_code is OK)  # one was sent
    assert published(again, "$delayed/3600/e").reason_code is EXCEEDED
    with site.client() as client:
        assert client.delayed()[0].cancel()
    assert published(again, "$delayed/3600/e").reason_code is OK
