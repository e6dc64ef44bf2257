"""Messages of each role to a store, over real sockets: tokens of one role, frames of one role, records of one role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import HandshakeRefused
from store.records._records import RecordBatch
from store.state.changes import (
    Change,
    GroupAdvanced,
    PeerGone,
    Progress,
    SessionClosed,
    SessionEnded,
    SessionOpened,
    Subscribed,
    SubscriptionState,
    Unsubscribed,
    WillFired,
    encode_change,
)
from store.state.consumer_work import ConsumerWork
from store.wire import copy_messages as of_copy
from store.wire import group_messages as of_group
from store.wire import log_messages as of_log
from store.wire import messages as wire
from store.wire import operator_messages as of_operator
from store.wire import quota_messages as of_quota
from store.wire import rights_messages as of_rights
from store.wire import tier_messages as of_tier
from store.wire.frames import encode
from store.wire.messages import KINDS, Claim, Claimed, Failed, Goodbye, Role, WireMessage
from store.wire.pace_messages import Behind
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import PeerClosed, WirePeer

TOKENS = {Role.GATEWAY: "for-gateways-only", Role.CLIENT: "for-clients-only", Role.OPERATOR: "for-operators-only"}
SETTINGS = {f"wire.{role.value}_token": token for role, token in TOKENS.items()}

SAMPLES: tuple[WireMessage, ...] = (
    of_operator.BanMade("address", "192.0.2.1", 1, "wrong passwords"),
    of_operator.LoginsEnded([of_operator.LoginEnd("192.0.2.1", "victim", "wrong")]),
    wire.Append(1),
    wire.Follow("t", False, -1, False),
    wire.Unfollow([1]),
    wire.Floors([(1, 0)]),
    wire.Read([(1, 0)], 1, 1),
    wire.ReadAt([0]),
    wire.Locate("t", "earliest"),
    wire.Retained("t", "", 1),
    wire.Claim("victim", True),
    wire.Release("victim"),
    wire.Check([1]),
    wire.Enough([1]),
    wire.Holds(["victim"]),
    wire.Judged(1, [True]),
    of_quota.TakeMessage("u", 1, "t", 1),
    of_quota.TakeSubscriptions("u", "victim", ["#"]),
    of_quota.LiveSubscriptions("u", 1),
    Behind(True),
    wire.Publish(1, wire.Wait.POLICY),
    wire.Scan("t", 0, 1, 1),
    wire.Seek("t", "now", 0),
    wire.Get(0),
    wire.Find("k", "", "earliest", "now", 1, 1),
    of_group.GroupOpen("g", "t", "c", None, "earliest"),
    of_group.GroupOpen("g", "#", "c", None, "earliest", or_refuse=True),
    of_group.GroupClose(1),
    of_group.Pop(1, 1, 1, 1, 1),
    of_group.Ack(1, []),
    of_group.ChangeInvisible(1, [], 1),
    of_group.Reject(1, [], None, ""),
    of_group.GroupWhere(1),
    of_group.TellWork(1, ConsumerWork()),
    of_group.ListWork("", 0),
    of_group.ListTags("", 0),
    of_group.GroupList("", 0),
    of_group.GroupReset("g", "t", "earliest"),
    of_group.GroupDrop("g", "t"),
    of_group.GroupPause("g", "t", True),
    of_group.PausedGroups("", 0),
    wire.ListDelayed((0, 0), 1),
    wire.CancelDelayed(0, 0),
    wire.GetDelayed(0, 0),
    of_log.Segments(0),
    of_log.ReadLog(0, 1),
    of_log.SeekLog(0, 0, 0),
    of_log.QueueOffsets(0, ["t"]),
    of_log.ReaderAt("r", 0),
    of_log.HoldLog("r", 0),
    of_log.LocateTable(),
    of_log.Topics("#", ""),
    of_rights.Rights(),
    of_rights.Permitted("publish", ["t"]),
    of_rights.ReadableFilters(),
    of_operator.ShowServer(0),
    of_operator.TopicReaders("t", 0),
    of_operator.MessageReceivers(0, 0),
    of_operator.DeadLetters("g", 0, 1),
    of_operator.SettleDeadLetter("g", 0, 0, True, "ops"),
    of_operator.DescribeClient("victim"),
    of_operator.Described(1, None),
    of_operator.ListGateways(),
    of_operator.ShowGateway("gw", 0),
    of_operator.FiguresTold(1, of_operator.GatewayReport("1", 0, "", [], None)),
    of_tier.ServeTier(0),
    of_copy.AskCopy(0),
    of_copy.CopySegment(0, 0, 1),
    of_copy.CopyCheckpoint("0123456789abcdef", "CURRENT", 0, 1),
)
OF_GATEWAYS = {
    *{"BanMade", "LoginsEnded", "ReadAt", "Claim", "Release", "Holds"},
    *{"Judged", "TakeMessage", "TakeSubscriptions", "LiveSubscriptions", "Behind", "Described", "FiguresTold"},
}
OF_CLIENTS = {
    "Publish",
    "Get",
    "GetDelayed",
    "Find",
    "Segments",
    "ReadLog",
    "SeekLog",
    "QueueOffsets",
    "ReaderAt",
    "HoldLog",
    "LocateTable",
    "Topics",
}
OF_CLIENTS |= {"Rights", "Permitted", "ReadableFilters", "GroupWhere", "TellWork", "ListWork", "ListTags"}
OF_OPERATORS = {"ShowServer", "TopicReaders", "MessageReceivers", "DeadLetters", "SettleDeadLetter", "DescribeClient"}
OF_OPERATORS |= {"ListGateways", "ShowGateway", "ServeTier", "AskCopy", "CopySegment", "CopyCheckpoint"}
OF_THE_STORE: tuple[WireMessage, ...] = (
    wire.Welcome(1, "", 0, 8, 8, 1, [], 0),
    wire.Refused("busy", ""),
    wire.Failed(wire.FailureCode.UNAVAILABLE, ""),
    wire.Appended(0, 0),
    wire.Grew([], 0),
    wire.TakenOver("victim"),
    wire.Claimed(b"", 0),
    wire.Safe(1 << 40),
)
CHANGES: tuple[Change, ...] = (
    SessionOpened("victim", True, 60),
    SessionClosed("victim", 0, False, 0),
    SessionEnded("victim"),
    Subscribed("victim", [SubscriptionState("#", 0)]),
    Unsubscribed("victim", ["t/#"]),
    Progress("victim", 1 << 40),
    WillFired("victim"),
    GroupAdvanced("g", "t", done=(0, 1)),
    PeerGone("gw"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path_factory.mktemp("roles"), settings=SETTINGS)
    yield store
    store.close()


@pytest.fixture(scope="module")
def healthy(store: StoreProcess) -> WirePeer:
    """A gateway that has the session which the others are after."""
    gateway = store.connect("gw", Role.GATEWAY, TOKENS[Role.GATEWAY])
    assert isinstance(gateway.call(Claim("victim", False)), Claimed)
    opened = SessionOpened("victim", False, 3_600)
    gateway.call(wire.Append(1), record_of(opened))
    gateway.call(wire.Append(2), record_of(Subscribed("victim", [SubscriptionState("t/#", 1)])))
    return gateway


def record_of(change: Change) -> bytes:
    batch = RecordBatch()
    batch.append(*encode_change(change))
    return bytes(batch)


def undisturbed(healthy: WirePeer) -> None:
    """The gateway is answered, and nobody took its session."""
    assert healthy.call(wire.Locate("t", "earliest")) == wire.Located(0)
    assert not [each for each in healthy.events if isinstance(each, wire.TakenOver | Goodbye)]


def said(peer: WirePeer, message: WireMessage) -> str:
    """What a store says to a frame: why it ends the connection, or nothing."""
    asked = next(kind.asked for kind in KINDS if kind.message is type(message))
    try:
        if asked:
            peer.ask(message)
        else:
            peer.tell(message)
        marker = peer.ask(wire.Seek("marker", "now", 0))
        peer.wait(lambda: marker in peer._answers or any(isinstance(each, Goodbye) for each in peer.events))
    except PeerClosed:
        pass
    goodbyes = [each.reason for each in peer.events if isinstance(each, Goodbye)]
    return goodbyes[0] if goodbyes else ""


def test_the_samples_are_all_that_peers_say() -> None:
    mutual = {"Hello", "Ping", "Pong", "Goodbye"}
    of_peers = {kind.message.__name__ for kind in KINDS if kind.senders - {Role.STORE}} - mutual
    ours = {type(each).__name__ for each in SAMPLES}
    assert ours <= of_peers
    assert {name for name in of_peers - ours if Role.OPERATOR not in senders(name)} == set()


def senders(name: str) -> frozenset[Role]:
    return next(kind.senders for kind in KINDS if kind.message.__name__ == name)


@pytest.mark.parametrize("role", [Role.GATEWAY, Role.CLIENT])
@pytest.mark.parametrize("message", SAMPLES, ids=lambda each: type(each).__name__)
def test_messages_of_each_role(store: StoreProcess, healthy: WirePeer, role: Role, message: WireMessage) -> None:
    name = type(message).__name__
    refused = name in (OF_GATEWAYS if role is Role.CLIENT else OF_CLIENTS) | OF_OPERATORS
    if role is Role.GATEWAY and name in OF_GATEWAYS:
        return  # these are what it is for
    peer = store.connect(f"{role}-{name}", role, TOKENS[role])
    why = said(peer, message)
    assert why == (f"{name} is not for a {role} to send" if refused else "")
    peer.close()
    undisturbed(healthy)


@pytest.mark.parametrize("role", [Role.GATEWAY, Role.CLIENT, Role.OPERATOR])
@pytest.mark.parametrize("message", OF_THE_STORE, ids=lambda each: type(each).__name__)
def test_messages_of_the_store_are_refused_from_peers(
    store: StoreProcess, healthy: WirePeer, role: Role, message: WireMessage
) -> None:
    with store.connect(f"{role}-{type(message).__name__}", role, TOKENS[role]) as peer:
        assert said(peer, message) == f"{type(message).__name__} is not for a {role} to send"
    undisturbed(healthy)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda each: type(each).__name__)
def test_an_operator_has_frames_of_its_own(store: StoreProcess, healthy: WirePeer, message: WireMessage) -> None:
    name = type(message).__name__
    if Role.OPERATOR in senders(name):
        return
    with store.connect(f"op-{name}", Role.OPERATOR, TOKENS[Role.OPERATOR]) as peer:
        assert said(peer, message) == f"{name} is not for a operator to send"
    undisturbed(healthy)


@pytest.mark.parametrize("frame", [wire.Append(1), wire.Publish(1, wire.Wait.STORED)], ids=["Append", "Publish"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda each: type(each).__name__)
def test_a_client_appends_messages_only(
    store: StoreProcess, healthy: WirePeer, change: Change, frame: WireMessage
) -> None:
    name = f"records-{type(change).__name__}-{type(frame).__name__}"
    with store.connect(name, Role.CLIENT, TOKENS[Role.CLIENT]) as client:
        answer = client.call(frame, record_of(change))
    assert isinstance(answer, Failed)
    assert answer.code == "bad_request"
    undisturbed(healthy)


def test_a_client_makes_no_stored_queue_by_following(store: StoreProcess) -> None:
    with store.connect("follower", Role.CLIENT, TOKENS[Role.CLIENT]) as client:
        for history, spills in ((True, False), (False, True)):
            answer = client.call(wire.Follow("a/+", history, -1, spills))
            assert isinstance(answer, Failed)
            assert answer.code == "not_allowed"


@pytest.mark.parametrize("role", list(TOKENS))
def test_a_token_is_for_one_role(store: StoreProcess, healthy: WirePeer, role: Role) -> None:
    for other in (*TOKENS.values(), "", "for-gateways-onlY"):
        if other == TOKENS[role]:
            store.connect(f"a {role}", role, other).close()
            continue
        with pytest.raises(HandshakeRefused) as caught:
            store.connect("b", role, other)
        assert caught.value.reason == "token"
        assert str(caught.value).endswith(f"not the token of a {role}")  # and not a word of whose it is
    undisturbed(healthy)


def test_the_name_of_a_gateway_is_not_for_a_client(store: StoreProcess, healthy: WirePeer, tmp_path: Path) -> None:
    with pytest.raises(HandshakeRefused, match="the name 'gw' is that of a gateway"):
        store.connect("gw", Role.CLIENT, TOKENS[Role.CLIENT])
    undisturbed(healthy)
    again = StoreProcess(tmp_path, settings=SETTINGS)
    try:
        again.connect("gw", Role.GATEWAY, TOKENS[Role.GATEWAY]).call(wire.Append(1), record_of(CHANGES[0]))
        again.kill()
        again.start()
        with pytest.raises(HandshakeRefused, match="the name 'gw' is that of a gateway"):
            again.connect("gw", Role.CLIENT, TOKENS[Role.CLIENT])
        assert again.connect("gw", Role.GATEWAY, TOKENS[Role.GATEWAY]).welcome.resumed
    finally:
        again.close()


def test_shared_token_is_warned_of(tmp_path: Path) -> None:
    """Without tokens by role, the one token lets in gateways and clients as before; and nobody as an operator."""
    store = StoreProcess(tmp_path, settings={"wire.token": "shared"})
    try:
        assert "wire.token lets every client act as a gateway" in store.log_text()
        store.connect("a", Role.GATEWAY, "shared")
        store.connect("b", Role.CLIENT, "shared")
        with pytest.raises(HandshakeRefused, match="nobody is let in here as 'operator'"):
            store.connect("c", Role.OPERATOR, "shared")
    finally:
        store.close()


def test_the_shared_token_is_of_roles_without_one_of_their_own(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path, settings={"wire.token": "shared", "wire.gateway_token": "gateways"})
    try:
        assert "lets every client act as a gateway" not in store.log_text()
        store.connect("b", Role.CLIENT, "shared")
        store.connect("a", Role.GATEWAY, "gateways")
        with pytest.raises(HandshakeRefused, match="not the token of a gateway"):
            store.connect("c", Role.GATEWAY, "shared")
    finally:
        store.close()


def test_a_role_without_a_token_is_not_let_in_where_others_have_one(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path, settings={"wire.gateway_token": "gateways"})
    try:
        with pytest.raises(HandshakeRefused, match="nobody is let in here as 'client'"):
            store.connect("c", Role.CLIENT)
    finally:
        store.close()


def test_two_roles_have_two_tokens(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"wire\.client_token and wire\.gateway_token are the same"):
        StoreProcess(tmp_path, settings={"wire.gateway_token": "same", "wire.client_token": "same"})


def test_a_hello_that_says_no_token_is_that_of_an_older_peer(store: StoreProcess) -> None:
    assert encode(wire.Hello([1], "gateway", "x")) == encode(wire.Hello([1], "gateway", "x", ""))
