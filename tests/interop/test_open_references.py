"""Rights that are withdrawn reach what a client of the store has open: each kind of reference is given out again by the
rules of now, or not at all."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
import pytest

from store.state.consumer_work import ConsumerWork
from store.wire import group_messages as of_group
from store.wire import messages as wire
from store.wire.base import Ref, WireMessage
from store.wire.messages import KINDS, FailureCode, Role
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import PeerClosed, WirePeer
from tests.support.stores import batch_of, wait_until

SECRET = "a secret of tests that is long enough"
RULES = """
[[rule]]
users = ["ann"]
allow = ["publish"]
topics = ["#"]

[[rule]]
users = ["ann"]
allow = ["subscribe", "replay"]
topics = ["line/#"]
"""
WITHDRAWN = RULES.replace("line/#", "other/#")
RECEIPTS = [of_group.Receipt(1, 0, 1)]
BY_REF: dict[type[WireMessage], Callable[[int], WireMessage]] = {
    wire.Unfollow: lambda ref: wire.Unfollow([ref]),
    wire.Floors: lambda ref: wire.Floors([(ref, 0)]),
    wire.Enough: lambda ref: wire.Enough([ref]),
    wire.Read: lambda ref: wire.Read([(ref, 0)], 10, 1 << 20),
    wire.Check: lambda ref: wire.Check([ref]),
    of_group.GroupClose: of_group.GroupClose,
    of_group.Pop: lambda ref: of_group.Pop(ref, 10, 1 << 20, 0, 0),
    of_group.Ack: lambda ref: of_group.Ack(ref, RECEIPTS),
    of_group.ChangeInvisible: lambda ref: of_group.ChangeInvisible(ref, RECEIPTS, 1_000),
    of_group.Reject: lambda ref: of_group.Reject(ref, RECEIPTS, None, ""),
    of_group.GroupWhere: of_group.GroupWhere,
    of_group.TellWork: lambda ref: of_group.TellWork(ref, ConsumerWork()),
}
"""What names something open by its number."""
ASKED = {kind.message for kind in KINDS if kind.asked}


class Site:
    """A store whose rules and password can change."""

    def __init__(self, folder: Path) -> None:
        self.rules = folder / "rules.toml"
        self.rules.write_text(RULES)
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        settings = {
            "auth.permissions_file": self.rules,
            "auth.jwt_secret_file": secret,
            "auth.jwt_require_exp": "false",
            "auth.jwt_leeway_s": 0,
        }
        self.store = StoreProcess(folder, settings=settings)

    def ann(self, **claims: object) -> WirePeer:
        return self.store.connect("ann", Role.CLIENT, password=jwt.encode({"sub": "ann", **claims}, SECRET, "HS256"))

    def withdraw(self) -> None:
        self.rules.write_text(WITHDRAWN)
        self.store.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded: authentication" in self.store.log_text())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.store.close()


def opened(peer: WirePeer) -> dict[type[WireMessage], int]:
    """A queue and a consumer, with a message in each: the number for what names one of them."""
    following = peer.call(wire.Follow("line/1", False, -1, False))
    assert isinstance(following, wire.Following)
    assert isinstance(
        peer.call(wire.Publish(1, wire.Wait.STORED), bytes(batch_of(b"before", topic=b"line/1"))), wire.Published
    )
    group = peer.call(of_group.GroupOpen("g", "line/1", "c", None, "earliest"))
    assert isinstance(group, of_group.GroupOpened)
    queue, consumer = following.queues[0].ref, group.ref
    return {kind: consumer if kind.__module__ == of_group.__name__ else queue for kind in BY_REF}


def until_closed(peer: WirePeer) -> None:
    with pytest.raises(PeerClosed):
        peer.wait(lambda: False)


def test_each_kind_that_names_something_open_is_here() -> None:
    of_clients = {kind.message for kind in KINDS if Role.CLIENT in kind.senders}
    assert {kind for kind in of_clients if names_ref(kind)} == BY_REF.keys()


def names_ref(kind: type[WireMessage]) -> bool:
    fields = kind.__annotations__
    return any(name in ("ref", "refs", "floors", "ranges") for name in fields) and str(Ref) in str(
        list(fields.values())
    )


@pytest.mark.parametrize("kind", BY_REF, ids=lambda kind: kind.__name__)
def test_a_reference_ends_with_the_right(site: Site, kind: type[WireMessage]) -> None:
    """A client that makes another connection under its name had what it had open, and nobody asked for its right."""
    first = site.ann()
    ref = opened(first)[kind]
    site.withdraw()
    until_closed(first)
    again = site.ann()
    refused = again.call(wire.Follow("line/1", False, -1, False))
    assert isinstance(refused, wire.Failed)
    assert refused.code == FailureCode.NOT_PERMITTED
    assert shows_nothing(again, kind, ref)
    assert isinstance(
        again.call(wire.Publish(2, wire.Wait.STORED), bytes(batch_of(b"after", topic=b"line/1"))), wire.Published
    )
    again.ping()
    again.ping()
    assert not [each for each in again.events if isinstance(each, wire.Grew | wire.Pushed)]


def shows_nothing(peer: WirePeer, kind: type[WireMessage], ref: int) -> bool:
    if kind not in ASKED:
        peer.tell(BY_REF[kind](ref))
        return True
    answer = peer.call(BY_REF[kind](ref))
    return isinstance(answer, wire.Failed) or (isinstance(answer, wire.Checked) and not answer.queues)


def test_new_connection_opens_its_references_again(site: Site) -> None:
    """With the same rights it is the same consumer, and has the messages that it had."""
    first = site.ann()
    ref = opened(first)[of_group.Pop]
    popped = first.call(of_group.Pop(ref, 10, 1 << 20, 0, 0))
    assert isinstance(popped, of_group.Popped)
    first.close()
    again = site.ann()
    assert shows_nothing(again, of_group.Pop, ref)
    group = again.call(of_group.GroupOpen("g", "line/1", "c", None, "earliest"))
    assert isinstance(group, of_group.GroupOpened)
    receipts = [of_group.Receipt(serial, place, number) for serial, _, place, number in popped.handed]
    assert again.call(of_group.Ack(group.ref, receipts)) == of_group.Settled([])


def test_a_token_expires_under_a_client_that_never_pauses(site: Site) -> None:
    """It was looked at only where the store had nothing to say for a heartbeat."""
    peer = site.ann(exp=int(time.time()) + 2)

    def asks() -> bool:
        peer.call(wire.Retained("line/1", "", 1))
        return False

    with pytest.raises(PeerClosed):
        wait_until(asks, 20)
    assert "its credentials have expired" in str(peer.events)
