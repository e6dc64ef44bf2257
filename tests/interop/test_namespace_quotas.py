"""The quotas of all clients of a namespace together, by MQTT and SDK, and across SIGKILL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import Publish, Will
from gateway.mqtt.reason_codes import ReasonCode
from penstock.errors import PenstockError
from penstock.sync import Client
from tests.conftest import ServerFactory
from tests.interop.test_user_quotas import Site, published, subscribed, unsubscribed
from tests.support.apart_server import ApartServer
from tests.support.mqtt_packet_client import Device, until

OK, EXCEEDED = ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED
ALICE, CAROL, BOB = "acme/alice", "acme/carol", "beta/bob"


class Tenants(Site):
    """Two tenants, acme and beta, of a store with two gateways."""

    def __init__(self, folder: Path, **limits: int) -> None:
        quotas = {f"quota.namespace_{name}": most for name, most in limits.items()}
        self._begin(folder, {user: user[:1] for user in (ALICE, CAROL, BOB)}, quotas, separator="/")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Tenants]]:
    sites: list[Tenants] = []

    def start(**limits: int) -> Tenants:
        sites.append(Tenants(tmp_path, **limits))
        return sites[-1]

    yield start
    for site in sites:
        site.close()


def client(site: Tenants, user: str = ALICE) -> Client:
    namespace = user.partition("/")[0]
    found = Client(site.store.url.replace("tcp://", "penstock://"), user=user, password=user[:1], namespace=namespace)
    found.connect()
    return found


def test_sessions_and_subscriptions_of_a_namespace(start: Callable[..., Tenants]) -> None:
    site = start(sessions=3, subscriptions=4)
    kept = site.device("one", 0, ALICE)
    assert subscribed(kept, "a", "b").reason_codes == (1, 1)
    kept.close()
    clean = site.device("two", 1, CAROL, expiry_s=0)
    assert subscribed(clean, "a").reason_codes == (1,)
    third = site.device("three", 0, CAROL)
    answer = subscribed(third, "a", "b")
    assert answer.reason_codes == (1, EXCEEDED)
    assert "quota.namespace_subscriptions: namespace acme has 4" in (answer.properties.reason_string or "")
    site.device("four", 1, ALICE)
    assert site.answer.reason_code is EXCEEDED
    assert "quota.namespace_sessions: namespace acme has 3" in (site.answer.properties.reason_string or "")
    for number in range(3):  # another namespace has as many of its own, the default one any number
        assert subscribed(site.device(f"b{number}", 0, BOB), "x").reason_codes == (1,)
    for number in range(5):
        assert subscribed(site.device(f"n{number}", 0, ""), "x", "y").reason_codes == (1, 1)
    clean.close()
    until(lambda: subscribed(third, "b").reason_codes == (1,))
    unsubscribed(third, "b")
    site.kill_all()
    again = site.device("three", 1, CAROL)
    assert site.answer.session_present
    assert subscribed(again, "b", "c").reason_codes == (1, EXCEEDED)
    site.device("five", 0, ALICE)
    assert site.answer.reason_code is OK
    site.device("six", 0, ALICE)
    assert site.answer.reason_code is EXCEEDED


def test_topics_delayed_and_retained_messages_of_a_namespace(start: Callable[..., Tenants]) -> None:
    site = start(topics=4, delayed=1, retained=2, retained_bytes=200)
    alice, carol, bob = site.device("a", 0, ALICE), site.device("c", 1, CAROL), site.device("b", 0, BOB)
    assert published(alice, "t/1", retain=True).reason_code is OK
    assert published(carol, "t/2", retain=True).reason_code is OK
    refused = published(alice, "t/3", retain=True)
    assert refused.reason_code is EXCEEDED
    assert "quota.namespace_retained: namespace acme has 2" in (refused.properties.reason_string or "")
    assert published(carol, "t/1", retain=True).reason_code is OK  # in place of hers
    refused = published(alice, "t/2", bytes(200), retain=True)
    assert "quota.namespace_retained_bytes: namespace acme has " in (refused.properties.reason_string or "")
    with client(site) as sdk:
        sdk.publish("t/3", b"1")
        sdk.publish("t/4", b"1", delay=3600)
        with pytest.raises(PenstockError, match=r"quota\.namespace_topics: namespace acme has 4"):
            sdk.publish("t/5", b"1")
    assert "quota.namespace_delayed: namespace acme has 1" in (
        published(carol, "$delayed/3600/t/4").properties.reason_string or ""
    )
    for number in range(4):
        assert published(bob, f"u/{number}").reason_code is OK
    site.kill_all()
    again = site.device("c", 0, CAROL)
    assert [published(again, each).reason_code for each in ("t/4", "t/5", "$delayed/9/t/1")] == [OK, EXCEEDED, EXCEEDED]
    assert published(again, "t/3", retain=True).reason_code is EXCEEDED
    with client(site, CAROL) as sdk:
        assert sdk.delayed()[0].cancel()
    assert published(again, "$delayed/3600/t/1").reason_code is OK


def test_groups_of_a_namespace(start: Callable[..., Tenants]) -> None:
    site = start(groups=2)
    alice = site.device("a", 0, ALICE)
    assert subscribed(alice, "$share/one/t").reason_codes == (1,)
    published(alice, "u")
    with client(site, CAROL) as sdk, sdk.subscribe("u", group="two") as subscription:
        next(iter(subscription)).ack()
        assert subscribed(alice, "$share/three/t").reason_codes == (EXCEEDED,)
        assert subscribed(alice, "$share/one/t").reason_codes == (1,)
        assert subscribed(site.device("b", 1, BOB), "$share/one/t", "$share/two/t").reason_codes == (1, 1)


def test_a_namespace_without_users_has_quotas_as_well(penstock_server: ServerFactory) -> None:
    """Nobody is asked who it is; the listener says of which namespace a client is."""
    listen = "mqtt://127.0.0.1:0?namespace=acme,mqtt://127.0.0.1:0"
    limits = {"connections": 2, "topics": 1, "subscriptions": 2, "retained": 1, "messages_per_s": 10}
    quotas = {f"quota.namespace_{name}": most for name, most in limits.items()}
    server = penstock_server(settings={"gateway.listen": listen, "quota.user_topics": 50, **quotas})
    acme, default = (int(url.rpartition(":")[2].partition("?")[0]) for url in server.urls[:2])
    one, two, third = Device(acme, "one"), Device(acme, "two"), Device(acme, "three")
    will = Will("t/2", b"gone", retain=True)
    assert [one.connect().reason_code, two.connect(will=will).reason_code] == [OK, OK]
    answer = third.connect()
    assert answer.reason_code is EXCEEDED
    again = Device(acme, "one")  # which takes the place of one
    assert again.connect().reason_code is OK
    assert published(again, "t/1", retain=True).reason_code is OK
    assert published(two, "t/2").reason_code is EXCEEDED
    assert subscribed(again, "t/1", "t/2", "t/3").reason_codes == (1, 1, EXCEEDED)
    two.close()  # its will is one topic too many
    others = [Device(default, f"default-{number}") for number in range(3)]
    assert [each.connect().reason_code for each in others] == [OK] * 3
    assert [published(others[0], f"t/{number}", retain=True).reason_code for number in range(3)] == [OK] * 3
    until(lambda: "will of client $ns:acme/two not sent: quota.namespace_topics" in server.log_text())
    assert again.next(Publish).payload == b"x"


class WithDefault(Site):
    """Users of the default namespace, and carol of acme; both namespaces are bounded."""

    def __init__(self, folder: Path, users: dict[str, str], **limits: int) -> None:
        quotas: dict[str, int] = {f"quota.namespace_{name}": most for name, most in limits.items()}
        self._begin(folder, users, quotas | {"quota.bound_default_namespace": True}, separator="/")


@pytest.fixture
def start_with_default(tmp_path: Path) -> Iterator[Callable[..., WithDefault]]:
    sites: list[WithDefault] = []

    def start(**limits: int) -> WithDefault:
        sites.append(WithDefault(tmp_path, {"alice": "a", "bob": "b", CAROL: "a"}, **limits))
        return sites[-1]

    yield start
    for site in sites:
        site.close()


def test_the_default_namespace_is_bounded_where_that_is_set(start_with_default: Callable[..., WithDefault]) -> None:
    """Its users and its clients without one together; and acme has as much of its own."""
    site = start_with_default(sessions=3, subscriptions=4, groups=1)
    alice, bob = site.device("one", 0, "alice"), site.device("two", 1, "bob", expiry_s=0)
    nobody = site.device("three", 1, "")
    assert [subscribed(each, "x").reason_codes for each in (alice, bob, nobody)] == [(1,)] * 3
    answer = subscribed(alice, "y", "z")
    assert answer.reason_codes == (1, EXCEEDED)
    assert "quota.namespace_subscriptions: the default namespace has 4" in (answer.properties.reason_string or "")
    site.device("four", 0, "bob")
    assert site.answer.reason_code is EXCEEDED
    assert "quota.namespace_sessions: the default namespace has 3" in (site.answer.properties.reason_string or "")
    carol = site.device("one", 0, CAROL)
    assert subscribed(carol, "x", "y", "z", "$share/g/t").reason_codes == (1, 1, 1, 1)
    unsubscribed(alice, "y")
    assert subscribed(alice, "$share/g/t").reason_codes == (1,)
    unsubscribed(nobody, "x")
    assert subscribed(bob, "$share/h/t").reason_codes == (EXCEEDED,)
    bob.close()
    until(lambda: subscribed(nobody, "y").reason_codes == (1,))
    site.kill_all()
    again = site.device("three", 0, "")
    assert site.answer.session_present
    assert subscribed(again, "x", "z").reason_codes == (1, EXCEEDED)
    until(lambda: site.tries("five", 1) is OK)
    site.device("six", 0, "bob")
    assert site.answer.reason_code is EXCEEDED


def test_quotas_of_the_default_namespace(start_with_default: Callable[..., WithDefault]) -> None:
    site = start_with_default(topics=4, delayed=1, retained=2)
    alice, nobody, carol = site.device("a", 0, "alice"), site.device("n", 1, ""), site.device("c", 0, CAROL)
    assert published(alice, "t/1", retain=True).reason_code is OK
    assert published(nobody, "t/2", retain=True).reason_code is OK
    refused = published(alice, "t/3", retain=True)
    assert refused.reason_code is EXCEEDED
    assert "quota.namespace_retained: the default namespace has 2" in (refused.properties.reason_string or "")
    with site.client("bob") as sdk:
        sdk.publish("t/3", b"1")
        sdk.publish("t/4", b"1", delay=3600)
        with pytest.raises(PenstockError, match=r"quota\.namespace_topics: the default namespace has 4"):
            sdk.publish("t/5", b"1")
    assert published(nobody, "$delayed/3600/t/4").reason_code is EXCEEDED
    for number in range(4):
        assert published(carol, f"u/{number}").reason_code is OK
    assert published(carol, "u/4").reason_code is EXCEEDED
    site.kill_all()
    again = site.device("n", 0, "")
    assert [published(again, each).reason_code for each in ("t/4", "t/5", "$delayed/9/t/1")] == [OK, EXCEEDED, EXCEEDED]
    with site.client("bob") as sdk:
        assert sdk.delayed()[0].cancel()
    assert published(again, "$delayed/3600/t/1").reason_code is OK


@pytest.mark.topologies("one process", "two gateways")
def test_the_default_namespace_without_users_is_bounded_as_well(penstock_server: ServerFactory) -> None:
    limits = {"topics": 1, "subscriptions": 2, "retained": 1}
    quotas = {f"quota.namespace_{name}": most for name, most in limits.items()}
    server = penstock_server(settings={"quota.bound_default_namespace": True, **quotas})
    one, two = Device(server.port, "one"), Device(server.port, "two")
    assert [one.connect().reason_code, two.connect(will=Will("t/2", b"gone")).reason_code] == [OK, OK]
    assert published(one, "t/1", retain=True).reason_code is OK
    assert published(two, "t/1").reason_code is OK
    refused = published(two, "t/2")
    assert refused.reason_code is EXCEEDED
    assert "quota.namespace_topics: the default namespace has 1" in (refused.properties.reason_string or "")
    assert subscribed(one, "t/1", "t/2", "t/3").reason_codes == (1, 1, EXCEEDED)
    assert subscribed(two, "t/1").reason_codes == (EXCEEDED,)
    two.close()  # its will is one topic too many
    until(lambda: "will of client two not sent: quota.namespace_topics" in server.log_text())
    if isinstance(server, ApartServer):
        url = server.store_url.replace("tcp://", "penstock://")
        with Client(url) as sdk, Client(url, namespace="*") as operator, Client(url, namespace="acme") as tenant:
            sdk.publish("t/1", b"1")
            with pytest.raises(PenstockError, match=r"quota\.namespace_topics: the default namespace has 1"):
                sdk.publish("t/2", b"1")
            operator.publish("t/2", b"1")
            tenant.publish("t/3", b"1")


def test_connections_and_rates_of_the_default_namespace(penstock_server: ServerFactory) -> None:
    listen = "mqtt://127.0.0.1:0?namespace=acme,mqtt://127.0.0.1:0"
    limits = {"connections": 2, "messages_per_s": 20}
    quotas = {f"quota.namespace_{name}": most for name, most in limits.items()}
    server = penstock_server(settings={"gateway.listen": listen, "quota.bound_default_namespace": True, **quotas})
    acme, default = (int(url.rpartition(":")[2].partition("?")[0]) for url in server.urls[:2])
    one, two, third = (Device(default, name) for name in ("one", "two", "three"))
    assert [each.connect().reason_code for each in (one, two, third)] == [OK, OK, EXCEEDED]
    assert Device(acme, "one").connect().reason_code is OK
    began_s = time.monotonic()
    for _ in range(25):  # 20 of these 50 are there at once, the others come at 20 a second
        for each in (one, two):
            published(each, "t")
    assert time.monotonic() - began_s > 1.2
    again = Device(default, "one")
    assert again.connect().reason_code is OK
    two.close()
    until(lambda: Device(default, "two").connect().reason_code is OK)


def test_the_default_namespace_is_not_bounded_unless_that_is_set(penstock_server: ServerFactory) -> None:
    limits = {"connections": 1, "topics": 1, "subscriptions": 1, "sessions": 1, "groups": 1, "retained": 1}
    server = penstock_server(settings={f"quota.namespace_{name}": most for name, most in limits.items()})
    one, two = Device(server.port, "one"), Device(server.port, "two")
    assert [one.connect().reason_code, two.connect().reason_code] == [OK, OK]
    assert [published(one, f"t/{number}", retain=True).reason_code for number in range(3)] == [OK] * 3
    assert subscribed(two, "a", "b", "$share/g/t", "$share/h/t").reason_codes == (1,) * 4
