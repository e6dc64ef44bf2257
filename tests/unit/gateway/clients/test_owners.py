"""A session belongs to the user who opened it: whom a gateway lets have which, in this process and over the wire."""

from __future__ import annotations

import tomllib
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from gateway.auth.access import Access, AccessParts
from gateway.auth.identity import Certificates
from gateway.auth.permissions import Permissions, parse_permissions
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import ConnAck, Disconnect, PingReq, PingResp, PubAck, Publish, Will
from gateway.mqtt.reason_codes import ReasonCode
from notify.local.store import LocalStore
from notify.owners import Claimant, ClaimDenied, refusal
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.state.changes import SessionAssigned, SessionClosed, SessionOpened, decode_change, encode_change
from tests.support.mqtt_bench import Bench, connect_packet
from tests.support.mqtt_packet_client import access_of
from tests.unit.conftest import StartBench

RULES = """
[[rule]]
users = ["root"]
allow = ["publish", "subscribe"]
topics = ["#"]

[[rule]]
allow = ["publish", "subscribe"]
topics = ["%u/#"]

[[rule]]
allow = ["publish", "subscribe"]
topics = ["open/#"]
"""
DURABLE: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 3_600}


def rules(text: str = RULES) -> Permissions:
    return parse_permissions(tomllib.loads(text))


def access(allow_anonymous: bool = True, permissions: Permissions | None = None) -> Access:
    parts = AccessParts((Certificates(),), permissions=permissions or rules(), allow_anonymous=allow_anonymous)
    return access_of(parts)


def judge_anew(bench: Bench, allow_anonymous: bool) -> None:
    """From now on by RULES; those who are connected stay as they are."""
    assert bench.access is not None
    bench.access.replace(AccessParts((Certificates(),), permissions=rules(), allow_anonymous=allow_anonymous))


@pytest.fixture
def bench(start_bench: StartBench) -> Bench:
    return start_bench(access=access())


def connack(bench: Bench, user: str, client_id: str = "d", version: int = 5, **fields: Any) -> ConnAck:
    return bench.client(version, user).connect(client_id, **fields)


@pytest.mark.parametrize(("claimant", "owner", "expected"), [
    (Claimant("a"), "a", None),
    (Claimant("a"), "b", ClaimDenied()),
    (Claimant("a"), "", ClaimDenied()),
    (Claimant(""), "", None),
    (Claimant(""), "b", ClaimDenied()),
    (Claimant("a", reads_all=True), "b", ClaimDenied()),
    (Claimant("a"), None, ClaimDenied(("x", "y"))),
    (Claimant("a", reads=("x",)), None, ClaimDenied(("x", "y"))),
    (Claimant("a", reads=("y", "x")), None, None),
    (Claimant("a", reads_all=True), None, None),
    (Claimant("a", adopts_anonymous=True), "", ClaimDenied(("x", "y"))),
    (Claimant("a", reads=("x", "y"), adopts_anonymous=True), "", None),
    (Claimant("a", reads=("x", "y"), adopts_anonymous=True), "b", ClaimDenied()),
    (Claimant(), "b", None),
])  # fmt: skip
def test_session_claims_are_refused_by_owner_and_filters(
    claimant: Claimant, owner: str | None, expected: ClaimDenied | None
) -> None:
    assert refusal(claimant, owner, ("x", "y")) == expected


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean_start", [False, True])
def test_session_of_another_user_is_refused_and_not_disturbed(bench: Bench, version: int, clean_start: bool) -> None:
    owner = bench.connect("d", user="a", will=Will("a/will", b"gone"), **DURABLE)
    owner.subscribe("a/#", qos=1)
    for user in ("b", "", "root"):
        answer = connack(bench, user, version=version, clean_start=clean_start)
        assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
    bench.connect("p", user="root").publish("a/1", b"1", qos=1)
    (message,) = owner.received()
    assert isinstance(message, Publish)
    owner.send(PubAck(message.packet_id or 0))
    owner.disconnect()
    for user in ("b", "", "root"):
        assert connack(bench, user, version=version, clean_start=clean_start).reason_code == ReasonCode.NOT_AUTHORIZED
    assert bench.connect("d", user="a", **DURABLE).received() == []
    assert [record.topic for record in bench.stored()] == [b"a/1"], "the will was not sent"
    assert bench.broker.guard.refused["session"] == 6
    state = bench.store.sessions.get("d")
    assert state is not None
    assert (state.user, list(state.subscriptions)) == ("a", ["a/#"])


def test_a_connection_that_no_record_knows_has_an_owner_as_well(bench: Bench) -> None:
    owner = bench.connect("d", user="a")
    for user in ("b", ""):
        assert connack(bench, user).reason_code is ReasonCode.NOT_AUTHORIZED
    owner.send(PingReq())
    assert owner.one(PingResp) == PingResp()
    assert not connack(bench, "a").reason_code, "its owner may come again"
    assert owner.one(Disconnect).reason_code is ReasonCode.SESSION_TAKEN_OVER


def test_a_client_identifier_is_free_again_once_its_session_ends(bench: Bench) -> None:
    for user in ("a", "", "b"):
        client = bench.connect("d", user=user)
        client.disconnect()
    bench.connect("d", user="a", clean_start=False, session_expiry_interval=10).lose()
    assert connack(bench, "b").reason_code is ReasonCode.NOT_AUTHORIZED
    bench.pass_time(11)
    bench.pass_time()
    assert not connack(bench, "b").reason_code


def test_anonymous_clients_are_an_owner_of_their_own(bench: Bench) -> None:
    bench.connect("d", **DURABLE).lose()
    for user in ("a", "root"):
        assert connack(bench, user, **DURABLE).reason_code is ReasonCode.NOT_AUTHORIZED
    assert connack(bench, "", **DURABLE).session_present


def test_session_owner_is_checked_while_another_gateway_has_the_session(bench: Bench) -> None:
    """The session is at another gateway, and its user waits for it here; so does another one."""
    other = LocalStore.join(bench.hub, "other")
    answers: list[object] = []
    other.sessions.claim("d", False, answers.append, Claimant("a"))
    mine, stranger = bench.client(user="a"), bench.client(user="b")
    for client in (mine, stranger):
        client.feed(encode(connect_packet("d"), 5))
    bench.run()
    assert stranger.one(ConnAck).reason_code is ReasonCode.NOT_AUTHORIZED
    assert mine.received() == []
    other.sessions.release("d")
    bench.run()
    assert mine.one(ConnAck).reason_code is ReasonCode.SUCCESS
    other.sessions.claim("d", False, answers.append, Claimant("b"))
    assert answers == [None, ClaimDenied()]
    assert not mine.is_closed


# --- sessions of older logs, and of times without authentication


def old_session(bench: Bench, *filters: str, user: str | None = None) -> None:
    """As an older version left it, or one without authentication."""
    client = bench.connect("d", **DURABLE)
    client.subscribe(*filters, qos=1)
    client.lose()
    state = bench.store.sessions.get("d")
    assert state is not None
    state.user = user


@pytest.mark.parametrize("filters", [("a/1", "$share/g/a/2"), tuple(f"a/{i}" for i in range(45))])
def test_an_old_session_is_for_the_first_user_who_may_read_all_of_it(
    start_bench: StartBench, filters: tuple[str, ...]
) -> None:
    bench = start_bench(access=access(permissions=rules(RULES + '[[rule]]\nallow = ["subscribe"]\ntopics = ["a/#"]\n')))
    old_session(bench, *filters)
    judge_anew(bench, allow_anonymous=True)
    assert connack(bench, "b", **DURABLE).reason_code is ReasonCode.NOT_AUTHORIZED
    assert connack(bench, "", **DURABLE).reason_code is ReasonCode.NOT_AUTHORIZED
    assert connack(bench, "a", **DURABLE).session_present
    assert connack(bench, "root", **DURABLE).reason_code is ReasonCode.NOT_AUTHORIZED, "it has an owner by now"


@pytest.mark.parametrize("allow_anonymous", [False, True])
def test_anonymous_sessions_are_adopted_only_if_anonymous_clients_are_refused(
    start_bench: StartBench, allow_anonymous: bool
) -> None:
    bench = start_bench(access=access())
    old_session(bench, "open/1", user="")
    judge_anew(bench, allow_anonymous)
    answer = connack(bench, "a", **DURABLE)
    assert answer.reason_code == (ReasonCode.NOT_AUTHORIZED if allow_anonymous else ReasonCode.SUCCESS)
    assert answer.session_present is not allow_anonymous


def test_a_connected_anonymous_client_is_not_adopted(start_bench: StartBench) -> None:
    bench = start_bench(access=access())
    client = bench.connect("d")
    judge_anew(bench, allow_anonymous=False)
    assert connack(bench, "root").reason_code is ReasonCode.NOT_AUTHORIZED
    assert not client.is_closed


def test_without_authentication_nothing_changes(start_bench: StartBench) -> None:
    bench = start_bench()
    old_session(bench, "x/#")
    assert connack(bench, "", **DURABLE).session_present


def test_a_record_without_a_user_has_no_owner_and_an_old_index_has_none() -> None:
    opened = SessionOpened("d", False, 60, None, "gw", "a")
    _, payload = encode_change(opened)
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(payload)[:-2])  # without `renewed` either
    change = decode_change(RecordType.SESSION_OPENED, older)
    assert change == msgspec.structs.replace(opened, user=None)


# --- by an operator


def test_an_operator_gives_a_session_to_a_user(bench: Bench) -> None:
    client = bench.connect("d", user="a", **DURABLE)
    client.subscribe("open/1", qos=1)
    assert not bench.hub.claims.assign("nobody", "b")
    assert bench.hub.claims.assign("d", "b")
    bench.run()
    assert client.one(Disconnect).reason_code is ReasonCode.SESSION_TAKEN_OVER
    assert connack(bench, "a", **DURABLE).reason_code is ReasonCode.NOT_AUTHORIZED
    assert connack(bench, "b", **DURABLE).session_present
    state = bench.store.sessions.get("d")
    assert state is not None
    assert state.user == "b"


def test_an_assigned_session_stays_so_whatever_was_on_its_way(bench: Bench) -> None:
    """The log has the assignment, and then the opening of the connection that it ended."""
    batch = RecordBatch()
    for change in (
        SessionOpened("d", False, 60, user="a"),
        SessionAssigned("d", "b"),
        SessionOpened("d", True, 60, user="a"),
        SessionClosed("d", 60, keep_will=False),
    ):
        batch.append(*encode_change(change))
    bench.store.append(batch)
    state = bench.store.sessions.get("d")
    assert state is not None
    assert state.user == "b"


def test_client_waiting_for_a_session_is_refused_when_it_is_assigned_to_another_user(bench: Bench) -> None:
    bench.connect("d", user="a", **DURABLE).lose()
    other = LocalStore.join(bench.hub, "other")
    answers: list[object] = []
    other.sessions.claim("d", False, answers.append, Claimant("a"))
    client = bench.client(user="a")
    client.send(connect_packet("d"))
    assert client.received() == []
    bench.hub.claims.assign("d", "b")
    bench.run()
    assert client.one(ConnAck).reason_code is ReasonCode.NOT_AUTHORIZED


# --- a store that was restarted


def test_a_user_who_was_let_in_while_a_gateway_was_away_gives_way(bench: Bench) -> None:
    """The gateway's connection is of the kind that no record knows."""
    first, second = LocalStore.join(bench.hub, "first"), LocalStore.join(bench.hub, "second")
    answers: list[object] = []
    second.sessions.claim("c", False, answers.append, Claimant("b"))
    batch = RecordBatch()
    batch.append(*encode_change(SessionOpened("c", False, 60, user="b", holder="second")))
    bench.store.append(batch)
    told: list[str] = []
    second.member.sessions = Mock(taken_over=told.append)
    first.sessions.hold_again("c", "a")
    assert told == ["c"]
    batch = RecordBatch()
    batch.append(*encode_change(SessionClosed("c", 60, keep_will=False)))
    bench.store.append(batch)
    bench.hub.tell_changes()
    assert bench.hub.claims.holder("c") is first.member
    assert bench.store.sessions.get("c") is None, "what the other user began has ended"
    second.sessions.claim("c", False, answers.append, Claimant("b"))
    assert answers == [None, ClaimDenied()]
