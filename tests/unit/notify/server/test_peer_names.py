"""Names of SDK clients belong to users and namespaces: nobody else appends under them, sees them, or loses for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.settings import WireSettings
from store.errors import WireError
from store.records._records import RecordBatch
from store.state.changes import PeerAppended, encode_change
from store.wire import group_messages as of_group
from store.wire.base import PRODUCER
from store.wire.messages import Append, Appended, Publish, Published, Role, Wait
from tests.support.store_protocol_bench import Talk, WireBench, message
from tests.support.stores import payloads
from tests.support.token_users import token, users_of

NAME = f"{PRODUCER}orders"
LEASE_S = WireSettings().lease_ms / 1000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


def come(bench: WireBench, user: str, namespace: str = "", name: str = NAME) -> Talk:
    """A client; `user` empty: of a store that knows no users."""
    if not user:
        return bench.connect(name, Role.CLIENT, namespace=namespace)
    claims = {"namespace": namespace} if namespace else {}
    return bench.connect(name, Role.CLIENT, judge=users_of(), password=token(user, **claims), namespace=namespace)


def publish(talk: Talk, sequence: int, payload: bytes, namespace: str = "") -> object:
    topic = f"$ns:{namespace}/t/1" if namespace else "t/1"
    return talk.call(Publish(sequence, Wait.STORED), message(payload, topic.encode()))


def away(bench: WireBench, how: str, talk: Talk) -> None:
    talk.cut()
    if how == "lease":
        bench.wait(LEASE_S + 1)
    elif how == "restart":
        bench.restart()


@pytest.mark.parametrize("how", ["cut", "lease", "restart"])
@pytest.mark.parametrize(
    ("owner", "other", "whose"),
    [
        (("ann", ""), ("bob", ""), "user"),
        (("ann", "acme"), ("ann", "beta"), "user"),
        (("ann", ""), ("ann", "beta"), "user"),
        (("", "acme"), ("", "beta"), "namespace"),
        (("", "acme"), ("", "*"), "namespace"),
    ],
)
def test_the_name_of_who_is_away_is_not_for_others(
    bench: WireBench, how: str, owner: tuple[str, str], other: tuple[str, str], whose: str
) -> None:
    """Else the store takes what the owner sends next for what it has already."""
    first = come(bench, *owner)
    assert isinstance(publish(first, 1, b"1", owner[1]), Published)
    away(bench, how, first)
    with pytest.raises(WireError, match=rf"the name '{NAME}' is that of another {whose}'s client"):
        come(bench, *other)
    again = come(bench, *owner)
    assert again.welcome.appended == 1
    assert isinstance(publish(again, 2, b"2", owner[1]), Published)
    assert payloads(bench.store, f"$ns:{owner[1]}/#" if owner[1] else "t/#") == [b"1", b"2"]


def test_a_name_is_somebody_elses_once_the_log_forgot_it(bench: WireBench) -> None:
    first = come(bench, "ann", name="c")
    assert isinstance(publish(first, 1, b"1"), Published)
    bench.peers.left(first.conversation.peer, "goodbye")  # type: ignore[arg-type]
    while bench.peers.go_on():
        pass
    assert come(bench, "bob", name="c").welcome.appended == 0


@pytest.mark.parametrize("how", ["cut", "lease", "restart"])
def test_users_that_become_known_keep_their_names(bench: WireBench, how: str) -> None:
    """A store without users knows nobody's user: its names are of the first who comes once it knows them, and the
    other way round.
    """
    first = come(bench, "")
    assert isinstance(publish(first, 1, b"1"), Published)
    away(bench, how, first)
    ann = come(bench, "ann")
    assert ann.welcome.appended == 1
    assert isinstance(publish(ann, 2, b"2"), Published)
    away(bench, how, ann)
    with pytest.raises(WireError, match="another user's client"):
        come(bench, "bob")
    assert come(bench, "").welcome.appended == 2


def test_a_name_of_an_older_log_is_of_who_comes_first(bench: WireBench) -> None:
    batch = RecordBatch()
    batch.begin_atomic()
    batch.append(*encode_change(PeerAppended(NAME, 7, (), True)))
    batch.end_atomic()
    bench.store.append(batch)
    bench.restart()
    assert bench.store.peers.get(NAME).owner is None  # type: ignore[union-attr]
    bob = come(bench, "bob")
    assert bob.welcome.appended == 7
    assert isinstance(publish(bob, 8, b"8"), Published)
    away(bench, "restart", bob)
    with pytest.raises(WireError, match="another user's client"):
        come(bench, "ann")


def test_gateways_names_are_of_no_user(bench: WireBench) -> None:
    gateway = bench.connect("gw")
    assert isinstance(gateway.call(Append(1), message(b"1")), Appended)
    bench.restart()
    assert bench.store.peers.get("gw").owner is None  # type: ignore[union-attr]
    assert bench.connect("gw").welcome.resumed


def names_seen(talk: Talk) -> dict[str, str]:
    listed = talk.call(of_group.GroupList("", 0))
    assert isinstance(listed, of_group.GroupsListed)
    return {each.consumer: each.peer for group in listed.groups for each in group.some}


def test_lists_of_groups_show_the_names_of_ones_own_clients(bench: WireBench) -> None:
    people = {"ann 1": ("ann", ""), "ann 2": ("ann", ""), "bob 1": ("bob", "")}
    talks = {name: come(bench, *who, name=name) for name, who in people.items()}
    gateway = bench.connect("gw")
    for name, talk in {**talks, "gw": gateway}.items():
        assert isinstance(talk.call(of_group.GroupOpen("g", "t/#", f"of {name}", None, "latest")), of_group.GroupOpened)
    seen = names_seen(talks["ann 1"])
    assert seen == {"of ann 1": "ann 1", "of ann 2": "ann 2", "of bob 1": "", "of gw": "gw"}
    assert names_seen(talks["bob 1"])["of ann 1"] == ""
    assert names_seen(gateway) == {f"of {name}": name for name in (*people, "gw")}


def test_a_tenant_sees_its_own_clients_alone(bench: WireBench) -> None:
    tenant, everyone = come(bench, "", "acme", "one"), come(bench, "", "*", "all")
    for talk, name in ((tenant, "one"), (everyone, "all"), (bench.connect("gw"), "gw")):
        talk.call(of_group.GroupOpen("$ns:acme:g", "$ns:acme/#", f"of {name}", None, "latest"))
    assert names_seen(tenant) == {"of one": "one", "of all": "", "of gw": ""}
    assert names_seen(everyone) == {"of one": "one", "of all": "all", "of gw": "gw"}
