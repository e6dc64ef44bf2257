"""Clients of a store whose rights another server decides: over a real HTTP server, and the wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterable, Callable, Iterator
from pathlib import Path

import jwt
import pytest

from penstock import Client
from penstock.sdk.errors import NotPermitted
from store.wire import group_messages as of_group
from store.wire import messages as wire
from store.wire import rights_messages as of_rights
from store.wire.base import WireMessage
from store.wire.messages import FailureCode, Role
from tests.support.http_answers import HttpAnswers
from tests.support.mqtt_packet_client import write_secret
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import PeerClosed, WirePeer
from tests.support.stores import batch_of, wait_until

SECRET = "a secret of tests that is long enough"


class Site:
    """A store, and the server that decides: `status` 200 allows what is no action and filter in `denied`."""

    def __init__(self, folder: Path) -> None:
        self.status = 200
        self.denied: set[tuple[str, str]] = set()
        self.hook = HttpAnswers(lambda _, body: (self.status, {"result": self._result(body)}))
        settings = {
            "auth.jwt_secret_file": write_secret(folder / "secret", SECRET),
            "auth.jwt_require_exp": "false",
            "auth.http_permission_url": f"{self.hook.url}/may",
            "auth.http_cache_s": 1,
            "auth.http_breaker_pause_ms": 10,
            "wire.lease_ms": 60_000,  # peers here say nothing while they wait
        }
        self.store = StoreProcess(folder, settings=settings)

    def _result(self, body: dict[str, str]) -> str:
        return "deny" if (body["action"], body["topic"]) in self.denied else "allow"

    def client(self, name: str, user: str = "ann") -> WirePeer:
        return self.store.connect(name, Role.CLIENT, password=self.password(user))

    @staticmethod
    def password(user: str) -> str:
        return jwt.encode({"sub": user}, SECRET, "HS256")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.store.close()
    site.hook.close()


SEQUENCES = itertools.count(1)
RECORDS = bytes(batch_of(b"x", topic=b"line/1"))
REQUESTS: dict[str, Callable[[WirePeer], WireMessage]] = {
    "publish": lambda peer: peer.call(wire.Publish(next(SEQUENCES), wire.Wait.STORED), RECORDS),
    "follow": lambda peer: peer.call(wire.Follow("line/#", False, -1, False)),
    "read": lambda peer: peer.call(wire.Locate("line/#", "earliest")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_without_an_answer_nothing_is_allowed(site: Site, name: str) -> None:
    """An answer that did not come was taken for an allowed one."""
    peer = site.client("c")
    site.status = 503
    for _ in range(10):  # also where the server is not asked any more for a while
        refused = REQUESTS[name](peer)
        assert isinstance(refused, wire.Failed)
        assert refused.code == FailureCode.NOT_PERMITTED
    assert peer.call(of_rights.Permitted("publish", ["line/2"])) == of_rights.PermittedTold([False])
    site.status = 200
    wait_until(lambda: not isinstance(REQUESTS[name](peer), wire.Failed))


OPENED: dict[str, WireMessage] = {
    "topic": wire.Follow("line/1", False, -1, False),
    "level": wire.Follow("line/#", False, -1, False),
    "filter": wire.Follow("+/1", False, -1, False),
    "group": of_group.GroupOpen("g", "line/1", "c", None, "earliest"),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_right_that_the_server_takes_away_reaches_what_is_open(site: Site, name: str) -> None:
    """It was asked when the client opened it, and never again: MQTT's subscriptions end when the answer expires."""
    opening, other = OPENED[name], site.client("other", "bob")
    peer = site.client("c")
    assert isinstance(peer.call(opening), wire.Following | of_group.GroupOpened)
    assert isinstance(other.call(wire.Follow("a/b", False, -1, False)), wire.Following)
    site.denied.add(("subscribe", opening.topic_filter))  # type: ignore[attr-defined]
    until_closed(peer)
    again = site.client("c")
    refused = again.call(opening)
    assert isinstance(refused, wire.Failed)
    assert refused.code == FailureCode.NOT_PERMITTED
    other.ping()
    assert f"subscribe {opening.topic_filter}: not allowed any more" in str(peer.events)  # type: ignore[attr-defined]


def test_open_references_stay_without_an_answer_of_the_hook(site: Site) -> None:
    """As an MQTT client's subscription does."""
    peer = site.client("c")
    for name in ("level", "group"):
        assert isinstance(peer.call(OPENED[name]), wire.Following | of_group.GroupOpened)
    site.status = 503
    asked = len(site.hook.asked)
    peer.wait(lambda: len(site.hook.asked) > asked + 4)
    publisher = site.store.connect("gw")
    assert isinstance(publisher.call(wire.Append(1), RECORDS), wire.Appended)
    peer.grew(1, 1)
    site.denied.add(("subscribe", "line/#"))
    site.status = 200
    until_closed(peer)


def test_closed_references_are_not_asked_about(site: Site) -> None:
    peer = site.client("c")
    assert isinstance(peer.call(OPENED["level"]), wire.Following)
    peer.tell(wire.Unfollow([1]))
    group = peer.call(OPENED["group"])
    assert isinstance(group, of_group.GroupOpened)
    peer.tell(of_group.GroupClose(group.ref))
    assert isinstance(peer.call(OPENED["filter"]), wire.Following)
    site.denied |= {("subscribe", "line/#"), ("subscribe", "line/1")}
    site.hook.asked.clear()
    peer.wait(lambda: len(site.hook.asked) >= 2)
    assert {body["topic"] for _, body, _ in site.hook.asked} == {"+/1"}


def test_more_rights_than_are_asked_about_at_a_time(site: Site) -> None:
    """The last one counts as the first one does."""
    peer = site.client("c")
    for number in range(100):
        peer.ask(wire.Follow(f"line/{number}", False, -1, False))
    assert isinstance(peer.call(wire.Follow("last", False, -1, False)), wire.Following)
    site.denied.add(("subscribe", "last"))
    until_closed(peer)


@pytest.mark.parametrize("group", [None, "g"])
def test_a_reading_of_the_sdk_ends(site: Site, group: str | None) -> None:
    async def read_on(some: AsyncIterable[object]) -> None:
        async for _ in some:
            site.denied.add(("subscribe", "line/#"))

    async def run() -> None:
        url, password = site.store.url.replace("tcp://", "penstock://"), site.password("ann")
        async with asyncio.timeout(60), Client(url, user="ann", password=password, timeout_s=30) as client:
            await client.publish("line/1", b"x")
            some = client.read("line/#", stop=None) if group is None else client.subscribe("line/#", group=group)
            with pytest.raises(NotPermitted, match="subscribe line/#"):
                await read_on(some)
            await client.publish("line/1", b"what it may do goes on")

    asyncio.run(run())


def until_closed(peer: WirePeer) -> None:
    with pytest.raises(PeerClosed):
        peer.wait(lambda: False)
