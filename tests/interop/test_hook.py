"""The HTTP hooks, against a real HTTP server."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.packets import PubAck, Publish, QoS, SubAck, Subscribe, SubscriptionRequest, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ONE_PROCESS_BY_DAY, ServerFactory, SharedServers
from tests.support.http_answers import HttpAnswers, Respond
from tests.support.mqtt_packet_client import Device, reload, until, write_secret
from tests.support.server_process import PenstockServer

pytestmark = ONE_PROCESS_BY_DAY

NUMBERS = itertools.count()
RULE = {"allow": ["publish"], "topics": ["a/#"]}


def allow_all(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"result": "allow"}


@pytest.fixture
def hook() -> Iterator[HttpAnswers]:
    answers = HttpAnswers(allow_all)
    yield answers
    answers.close()


@pytest.fixture(scope="module")
def shared_hook() -> Iterator[HttpAnswers]:
    answers = HttpAnswers(allow_all)
    yield answers
    answers.close()


@pytest.fixture
def start(penstock_server: ServerFactory, hook: HttpAnswers) -> Any:
    def start(**settings: object) -> PenstockServer:
        defaults = {"http_connect_url": f"{hook.url}/connect", "http_permission_url": f"{hook.url}/may"}
        return penstock_server(settings={f"auth.{name}": value for name, value in {**defaults, **settings}.items()})

    return start


@pytest.fixture
def start_one(start: Any) -> Any:
    """What is remembered, and who waits, is each gateway's own."""
    return lambda **settings: start(**settings).one_gateway()


def connected(server: PenstockServer, name: str = "d", version: int = 5, **fields: Any) -> Device:
    device = Device(server.port, name, version)
    assert device.connect("u", "p", **fields).reason_code is ReasonCode.SUCCESS
    return device


def by_topic(allowed: dict[str, int]) -> Respond:
    """Everybody may connect; what may be done with a topic is `action topic` → highest QoS."""

    def respond(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/connect":
            return 200, {"result": "allow"}
        key = f"{body['action']} {body['topic']}"
        return 200, {"result": "allow" if key in allowed else "deny", "max_qos": allowed.get(key, 0)}

    return respond


def test_rules_for_a_client_identifier_that_each_may_have(start: Any, hook: HttpAnswers) -> None:
    answer: dict[str, Any] = {"result": "allow", "permissions": [{"allow": ["publish"], "topics": ["a/%c"]}]}
    hook.respond = lambda path, body: (200, answer)
    server = start(http_cache_s=0)

    def code() -> ReasonCode:
        return Device(server.port, "d").connect("u", "p").reason_code

    assert code() is ReasonCode.NOT_AUTHORIZED
    until(lambda: "its rules have %c, the client identifier, and user u may have any" in server.log_text())
    answer["client_id"] = "other"
    assert code() is ReasonCode.NOT_AUTHORIZED
    answer["client_id"] = "d"
    assert code() is ReasonCode.SUCCESS


def test_hook_requests_have_all_fields(start: Any, hook: HttpAnswers, tmp_path: Path) -> None:
    header = write_secret(tmp_path / "header", "Authorization: Bearer abc\n")
    server = start(http_header_file=header)
    device = connected(server)
    assert device.published("a/b") is ReasonCode.SUCCESS
    assert device.published("a/b", retain=True) is ReasonCode.SUCCESS
    assert device.subscribe("$share/g/c/+") is not ReasonCode.NOT_AUTHORIZED
    assert device.subscribe("$dead/g/c/d") is not ReasonCode.NOT_AUTHORIZED
    assert device.subscribe("$dead/+/#") is not ReasonCode.NOT_AUTHORIZED
    paths, bodies, headers = zip(*hook.asked, strict=True)
    assert paths == ("/connect", *["/may"] * 5)
    assert bodies[0] | {"peer": ""} == {
        "client_id": "d",
        "username": "u",
        "password": "p",
        "peer": "",
        "certificate": None,
    }
    assert bodies[0]["peer"].startswith("127.0.0.1:")
    behind = (("subscribe", "c/d"), ("subscribe", "#"))  # of dead letters, the topics that these are of
    assert bodies[1:] == tuple(
        {"client_id": "d", "username": "u", "action": action, "topic": topic}
        for action, topic in (("publish", "a/b"), ("retain", "a/b"), ("subscribe", "c/+"), *behind)
    )
    assert {each["Authorization"] for each in headers} == {"Bearer abc"}
    assert hook.connections <= 4


def test_hook_decides_about_publishing_and_subscribing(penstock_server: ServerFactory, hook: HttpAnswers) -> None:
    hook.respond = by_topic({"publish yes": 1, "subscribe yes": 1, "subscribe #": 2, "retain yes": 0})
    server = penstock_server(
        settings={"auth.http_connect_url": f"{hook.url}/connect", "auth.http_permission_url": f"{hook.url}/may"}
    )
    reader, device = connected(server, "reader"), connected(server)
    assert reader.subscribe("#", 2) is ReasonCode.GRANTED_QOS_2
    wanted = [SubscriptionRequest(name, QoS.EXACTLY_ONCE) for name in ("yes", "no", "yes")]
    device.send(Subscribe(1, tuple(wanted)))
    assert device.next(SubAck).reason_codes == (1, 0x87, 1)
    device.publish("no", b"0")
    device.publish("yes", b"1")  # behind one that waits
    assert reader.next(Publish).payload == b"1"
    assert device.next(Publish).payload == b"1"
    assert device.published("no") is ReasonCode.NOT_AUTHORIZED
    assert device.published("yes", retain=True) is ReasonCode.NOT_AUTHORIZED
    old = connected(server, "old", 4)
    assert old.published("no") is ReasonCode.SUCCESS
    assert old.published("yes", b"2") is ReasonCode.SUCCESS
    assert reader.next(Publish).payload == b"2"


def test_messages_keep_their_order_while_answers_are_awaited(start: Any, hook: HttpAnswers) -> None:
    server = start(http_cache_s=0)
    reader, device = connected(server, "reader"), connected(server)
    reader.subscribe("#", 1)
    for number in range(100):
        device.publish(f"t/{number % 7}", b"%d" % number, number % 2)
    assert [reader.next(Publish).payload for _ in range(100)] == [b"%d" % number for number in range(100)]


def test_answers_are_remembered_for_a_while(start_one: Any, hook: HttpAnswers) -> None:
    server = start_one(http_cache_s=1)
    device = connected(server)
    for _ in range(50):
        assert device.published("a") is ReasonCode.SUCCESS
    assert len(hook.asked) <= 6  # one per second, however slow this machine is
    hook.respond = by_topic({})
    until(lambda: device.published("a") is ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (200, {"result": "allow"}, ReasonCode.SUCCESS),
        (200, {"result": "deny"}, ReasonCode.NOT_AUTHORIZED),
        (200, {"result": "ignore"}, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        (200, {}, ReasonCode.NOT_AUTHORIZED),
        (200, {"result": True}, ReasonCode.NOT_AUTHORIZED),
        (401, b"", ReasonCode.NOT_AUTHORIZED),
        (403, b"no", ReasonCode.NOT_AUTHORIZED),
        (500, {"result": "allow"}, ReasonCode.SERVER_UNAVAILABLE),
        (302, {"result": "allow"}, ReasonCode.SERVER_UNAVAILABLE),
        (200, b"allow", ReasonCode.SERVER_UNAVAILABLE),
        (200, b"[" * 100_000, ReasonCode.SERVER_UNAVAILABLE),
        (200, b'"' + b"x" * (2 << 20) + b'"', ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": "allow", "user": 1}, ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": "allow", "permissions": [{}]}, ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": "allow", "expires_at": 1}, ReasonCode.NOT_AUTHORIZED),
        (200, b'{"result": "allow", "expires_at": NaN}', ReasonCode.SERVER_UNAVAILABLE),
        (200, b'{"result": "allow", "expires_at": Infinity}', ReasonCode.SERVER_UNAVAILABLE),
        (200, b'{"result": "allow", "expires_at": 1e400}', ReasonCode.SERVER_UNAVAILABLE),
        (200, b'{"result": "allow", "expires_at": 1e300}', ReasonCode.SERVER_UNAVAILABLE),
        (200, b'{"result": "allow", "expires_at": 1' + b"0" * 4_000 + b"}", ReasonCode.SERVER_UNAVAILABLE),
        (200, b'{"result": "allow", "expires_at": 1' + b"0" * 9_000 + b"}", ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": "allow", "expires_at": -1}, ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": "allow", "expires_at": True}, ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": "allow", "expires_at": "4000000000"}, ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": "allow", "expires_at": 4_000_000_000.5}, ReasonCode.SUCCESS),
        (200, b'{"result": "allow", "x": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": ["allow"]}, ReasonCode.NOT_AUTHORIZED),
        (200, {"result": "allow", "permissions": [{"allow": [[]], "topics": ["#"]}]}, ReasonCode.SERVER_UNAVAILABLE),
        (200, {"result": "allow", "permissions": [RULE] * 100}, ReasonCode.SUCCESS),
        (200, {"result": "allow", "permissions": [RULE] * 101}, ReasonCode.SERVER_UNAVAILABLE),
    ],
)
def test_hook_answers_of_every_kind(
    shared_server: SharedServers, shared_hook: HttpAnswers, status: int, answer: Any, expected: ReasonCode
) -> None:
    settings = {"auth.http_connect_url": f"{shared_hook.url}/connect", "auth.http_breaker_failures": 1_000}
    shared_hook.respond = lambda path, body: (status, answer)
    server = shared_server(settings=settings)
    device = Device(server.port, f"d{next(NUMBERS)}")  # answers are remembered
    assert device.connect("u", "p").reason_code is expected
    assert "Traceback" not in server.log_text()


def test_permissions_and_user_from_the_answer(start: Any, hook: HttpAnswers) -> None:
    rules = [{"allow": ["publish"], "topics": ["u/%u/#"]}]
    hook.respond = lambda path, body: (200, {"result": "allow", "user": "someone", "permissions": rules})
    device = connected(start(http_permission_url=""))
    assert device.published("u/someone/a") is ReasonCode.SUCCESS
    assert device.published("u/u/a") is ReasonCode.NOT_AUTHORIZED
    assert device.subscribe("u/someone/a") is ReasonCode.NOT_AUTHORIZED


def test_no_answer_in_time_is_a_refusal_and_others_do_not_wait(start: Any, hook: HttpAnswers) -> None:
    release = threading.Event()
    known = by_topic({"publish fast": 2})

    def respond(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body.get("topic") == "slow":
            release.wait(30)
        return known(path, body)

    hook.respond = respond
    server = start(http_timeout_ms=1_500)
    slow, fast = connected(server, "slow"), connected(server, "fast")
    slow.publish("slow", b"", 1)
    for _ in range(20):
        assert fast.published("fast") is ReasonCode.SUCCESS
    assert not release.is_set()
    assert slow.published("fast") is ReasonCode.NOT_AUTHORIZED  # the answer to the first
    release.set()


def test_a_hook_that_fails_is_not_asked_for_a_while(start_one: Any, hook: HttpAnswers) -> None:
    server = start_one(http_breaker_failures=3, http_breaker_pause_ms=1_000, http_permission_url="")
    hook.respond = lambda path, body: (500, {})
    for number in range(20):
        answer = Device(server.port, f"d{number}").connect("u", "p")
        assert answer.reason_code is ReasonCode.SERVER_UNAVAILABLE
    assert 3 <= len(hook.asked) < 20
    assert "keeps failing" in server.log_text()
    hook.respond = allow_all
    until(lambda: Device(server.port, "d").connect("u", "p").reason_code is ReasonCode.SUCCESS)
    assert "answers again" in server.log_text()


def test_unreachable_hook_is_a_refusal(penstock_server: ServerFactory, free_port: int) -> None:
    server = penstock_server(settings={"auth.http_connect_url": f"http://127.0.0.1:{free_port}/"})
    assert Device(server.port, "d").connect("u", "p").reason_code is ReasonCode.SERVER_UNAVAILABLE
    assert Device(server.port, "d", 4).connect("u", "p").reason_code is ReasonCode.SERVER_UNAVAILABLE


def test_requests_that_wait_are_bounded(start_one: Any, hook: HttpAnswers) -> None:
    release = threading.Event()
    hook.respond = lambda path, body: (200, {"result": "allow" if release.wait(30) else "deny"})
    server = start_one(http_connections=1, http_max_waiting=2, http_timeout_ms=20_000)
    devices = [Device(server.port, f"d{number}") for number in range(5)]
    for device in devices:
        device.send_connect("u", "p")
    until(lambda: server.log_text().count("gave no answer") == 3)
    release.set()
    codes = [getattr(device.receive(), "reason_code", None) for device in devices]
    assert sorted(code for code in codes if code is not None) == [0, 0, 0x88, 0x88, 0x88]


def test_wills_and_old_subscriptions_are_asked_about(start: Any, hook: HttpAnswers) -> None:
    hook.respond = by_topic({"publish ok": 2, "subscribe a": 1, "subscribe b": 1})
    server = start(http_cache_s=1)
    refused = Device(server.port, "w").connect("u", "p", will=Will("no"))
    assert refused.reason_code is ReasonCode.NOT_AUTHORIZED
    kept: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100}
    device = connected(server, **kept, will=Will("ok"))
    assert [device.subscribe("a", 1), device.subscribe("b", 1)] == [1, 1]
    device.close()
    hook.respond = by_topic({"publish ok": 2, "publish a": 1, "publish b": 1, "subscribe b": 1})
    reload(server)
    publisher = connected(server, "publisher")
    assert [publisher.published("a", b"a"), publisher.published("b", b"b")] == [0, 0]
    device = connected(server, **kept)
    assert device.next(Publish).payload == b"b"
    assert "subscription to a taken away" in server.log_text()


def test_a_session_that_is_taken_over_while_an_answer_is_awaited(start: Any, hook: HttpAnswers) -> None:
    release = threading.Event()
    known = by_topic({"publish slow": 2, "subscribe #": 0})

    def respond(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body.get("topic") == "slow":
            release.wait(30)
        return known(path, body)

    hook.respond = respond
    server = start(http_timeout_ms=20_000)
    reader, first = connected(server, "reader"), connected(server, "d")
    reader.subscribe("#")
    first.publish("slow", b"1", 1)
    until(lambda: any(body.get("topic") == "slow" for _, body, _ in hook.asked))
    second = connected(server, "d")
    assert first.closed_with() is ReasonCode.SESSION_TAKEN_OVER
    second.publish("slow", b"2", 1)
    release.set()
    assert second.next(PubAck).reason_code is ReasonCode.SUCCESS
    assert reader.next(Publish).payload == b"2"


def test_subscriptions_are_asked_about_again_at_a_reload(start: Any, hook: HttpAnswers) -> None:
    """Whatever is remembered of before; while there is no answer nothing is taken away."""
    hook.respond = by_topic({"subscribe a": 1, "subscribe b": 1, "publish a": 1, "publish b": 1})
    server = start(http_cache_s=1_000)
    device, publisher = connected(server), connected(server, "publisher")
    assert [device.subscribe("a", 1), device.subscribe("b", 1)] == [1, 1]
    hook.respond = lambda path, body: (500, {})
    reload(server)
    hook.respond = by_topic({"subscribe b": 1, "publish a": 1, "publish b": 1})
    reload(server)
    until(lambda: "subscription to a taken away" in server.log_text())
    until(lambda: publisher.published("a", b"a") is ReasonCode.SUCCESS)
    assert publisher.published("b", b"b") is ReasonCode.SUCCESS
    assert device.next(Publish).payload == b"b"


def test_session_resumed_while_the_hook_does_not_answer(start: Any, hook: HttpAnswers) -> None:
    """Closed with 0x89, the subscriptions stay; a new one is refused with 0x87."""
    known = by_topic({"subscribe a": 1, "publish a": 1})
    hook.respond = known
    server = start(http_cache_s=0, http_breaker_failures=1_000)
    kept: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100}
    device = connected(server, **kept)
    assert device.subscribe("a", 1) is ReasonCode.GRANTED_QOS_1
    device.close()
    hook.respond = lambda path, body: known(path, body) if path == "/connect" else (500, {})
    assert connected(server, **kept).closed_with() is ReasonCode.SERVER_BUSY
    assert connected(server, "other").subscribe("a", 1) is ReasonCode.NOT_AUTHORIZED
    hook.respond = known
    device, publisher = connected(server, **kept), connected(server, "publisher")
    assert publisher.published("a", b"1") is ReasonCode.SUCCESS
    assert device.next(Publish).payload == b"1"


def test_an_address_whose_users_the_hook_denies_is_limited_and_banned(start_one: Any, hook: HttpAnswers) -> None:
    hook.respond = lambda path, body: (200, {"result": "deny"})
    server = start_one(max_failures=2, ban_failures=4, ban_s=600, limit_loopback="true")

    def attempt() -> ReasonCode | None:
        """None: it was closed before its CONNECT had come."""
        device = Device(server.port, "d")
        device.send_connect("u", "p")
        return getattr(device.receive(), "reason_code", None)

    assert [attempt() for _ in range(3)] == [*[ReasonCode.NOT_AUTHORIZED] * 2, ReasonCode.CONNECTION_RATE_EXCEEDED]
    assert attempt() in (ReasonCode.CONNECTION_RATE_EXCEEDED, ReasonCode.BANNED)  # this one made the ban
    until(lambda: attempt() is ReasonCode.BANNED)
    assert len(hook.asked) == 2  # who is limited or banned is refused unheard
    assert "127.0.0.1 is banned for 600 s: 4 failed logins" in server.log_text()
