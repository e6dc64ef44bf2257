"""Names of SDK clients belong to users, and each namespace has its own: nobody else appends under them, sees them, or
loses for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.settings import WireSettings
from store.errors import WireError
from store.records._records import RecordBatch
from store.state.changes import PeerAppended, encode_change
from store.wire import group_messages as of_group
from store.wire.base import PRODUCER
from store.wire.messages import Append, Appended, FailureCode, Goodbye, Publish, Published, Role, Wait
from tests.support.store_protocol_bench import Talk, WireBench, failure, message
from tests.support.stores import payloads
from tests.support.token_users import token, users_of

NAME = f"{PRODUCER}orders"
HOW = ["cut", "lease", "restart", "kill"]
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
    topic = f"$ns:{namespace}/t/1" if namespace not in ("", "*") else "t/1"
    return talk.call(Publish(sequence, Wait.STORED), message(payload, topic.encode()))


def filter_of(namespace: str) -> str:
    return f"$ns:{namespace}/#" if namespace not in ("", "*") else "t/#"


def away(bench: WireBench, how: str, talk: Talk) -> None:
    talk.cut()
    if how == "lease":
        bench.wait(LEASE_S + 1)
    elif how == "restart":
        bench.restart()
    elif how == "kill":
        bench.kill()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("namespace", ["", "acme"])
def test_the_name_of_who_is_away_is_not_for_others(bench: WireBench, how: str, namespace: str) -> None:
    """Else the store takes what the owner sends next for what it has already."""
    first = come(bench, "ann", namespace)
    assert isinstance(publish(first, 1, b"1", namespace), Published)
    away(bench, how, first)
    with pytest.raises(WireError, match=rf"the name '{NAME}' is that of another user's client"):
        come(bench, "bob", namespace)
    again = come(bench, "ann", namespace)
    assert again.welcome.appended == 1
    assert isinstance(publish(again, 2, b"2", namespace), Published)
    assert payloads(bench.store, filter_of(namespace)) == [b"1", b"2"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ann", "acme"), ("ann", "beta")),
        (("ann", ""), ("ann", "beta")),
        (("ann", "acme"), ("bob", "")),
        (("", "acme"), ("", "beta")),
        (("", ""), ("", "acme")),
        (("", "acme"), ("", "*")),
        (("", ""), ("", "*")),
    ],
)
def test_each_namespace_has_its_names(bench: WireBench, how: str, one: tuple[str, str], other: tuple[str, str]) -> None:
    """The second one was refused, and learned that the first one exists."""
    talks = {each: come(bench, *each) for each in (one, other)}
    for each, talk in talks.items():
        assert (talk.welcome.appended, talk.welcome.resumed) == (0, False)
        assert isinstance(publish(talk, 1, f"1 of {each}".encode(), each[1]), Published)
    for talk in talks.values():
        talk.cut()
    away(bench, how, talks[one])
    for each in (other, one):
        again = come(bench, *each)
        assert again.welcome.appended == 1
        for number in (1, 2):
            publish(again, number, f"{number} of {each}".encode(), each[1])
    for each in (one, other):
        stored = [f"{number} of {each}".encode() for number in (1, 2)]
        assert [payload for payload in payloads(bench.store, filter_of(each[1])) if payload in stored] == stored


def test_a_gateways_name_is_free_for_a_tenant(bench: WireBench) -> None:
    gateway = bench.connect(NAME)
    assert isinstance(gateway.call(Append(1), message(b"1")), Appended)
    assert come(bench, "", "acme").welcome.appended == 0
    with pytest.raises(WireError, match="is that of a gateway"):
        come(bench, "")


@pytest.mark.parametrize("role", [Role.GATEWAY, Role.CLIENT])
def test_peer_name_with_a_namespace_prefix_is_refused(bench: WireBench, role: Role) -> None:
    with pytest.raises(WireError, match="no peer may have a name that begins with"):
        bench.connect(f"$ns:acme/{NAME}", role)


def test_departing_peer_takes_nothing_from_its_namesake(bench: WireBench) -> None:
    """Neither what it holds of a group, nor its name."""
    talks = {name: come(bench, "", name, "c") for name in ("acme", "beta")}
    refs = {}
    for name, talk in talks.items():
        publish(talk, 1, name.encode(), name)
        opened = talk.call(of_group.GroupOpen(f"$ns:{name}:g", f"$ns:{name}/#", "x", None, "earliest"))
        assert isinstance(opened, of_group.GroupOpened)
        refs[name] = opened.ref
        popped = talk.call(of_group.Pop(opened.ref, 1, 1 << 20, 0, 0))
        assert isinstance(popped, of_group.Popped)
        assert len(popped.handed) == 1
    crossed = talks["acme"].call(of_group.Pop(refs["beta"], 1, 1 << 20, 0, 0))
    assert failure(crossed) == FailureCode.NOT_ALLOWED
    talks["beta"].tell(Goodbye("it ends"))
    talks["beta"].cut()
    bench.wait(1)
    assert come(bench, "", "beta", "c").welcome.appended == 0
    listed = talks["acme"].call(of_group.GroupList("", 0))
    assert isinstance(listed, of_group.GroupsListed)
    assert [(each.peer, each.in_flight) for group in listed.groups for each in group.some] == [("c", 1)]


@pytest.mark.parametrize("how", HOW)
def test_names_of_older_logs_go_on(bench: WireBench, how: str) -> None:
    """They have no prefix. Meanwhile others have the same name in their own namespaces."""
    note(bench, PeerAppended(NAME, 7, (), True, owner=(None, "acme")))
    for name, appended in (("", 0), ("beta", 0), ("acme", 7)):
        talk = come(bench, "", name)
        assert talk.welcome.appended == appended
        assert isinstance(publish(talk, appended + 1, b"next", name), Published)
        talk.cut()
    away(bench, how, talk)
    for name, appended in (("acme", 8), ("", 1), ("beta", 1)):
        assert come(bench, "", name).welcome.appended == appended
    assert set(bench.store.peers) == {NAME, f"$ns:/{NAME}", f"$ns:beta/{NAME}"}


def test_a_name_of_an_older_log_is_forgotten_with_its_owner(bench: WireBench) -> None:
    note(bench, PeerAppended("c", 7, (), True, owner=(None, "acme")))
    talk = come(bench, "", "acme", "c")
    talk.tell(Goodbye("it ends"))
    bench.wait(1)
    assert come(bench, "", "acme", "c").welcome.appended == 0
    assert come(bench, "", "", "c").welcome.appended == 0
    assert set(bench.store.peers) == set()


@pytest.mark.parametrize("namespace", ["", "acme", "*"])
def test_producers_are_remembered_for_longer_in_each_namespace(bench: WireBench, namespace: str) -> None:
    for name in (NAME, "c"):
        talk = come(bench, "", namespace, name)
        assert isinstance(publish(talk, 1, b"1", namespace), Published)
        talk.tell(Goodbye("it ends"))
        talk.cut()
    bench.wait(1)
    assert [come(bench, "", namespace, name).welcome.appended for name in (NAME, "c")] == [1, 0]


def note(bench: WireBench, change: PeerAppended) -> None:
    """A record of an older store."""
    batch = RecordBatch()
    batch.begin_atomic()
    batch.append(*encode_change(change))
    batch.end_atomic()
    bench.store.append(batch)
    bench.restart()


def test_a_name_is_somebody_elses_once_the_log_forgot_it(bench: WireBench) -> None:
    first = come(bench, "ann", name="c")
    assert isinstance(publish(first, 1, b"1"), Published)
    bench.peers.left(first.conversation.peer, "goodbye")  # type: ignore[arg-type]
    while bench.peers.go_on():
        pass
    assert come(bench, "bob", name="c").welcome.appended == 0


@pytest.mark.parametrize("how", HOW)
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
    note(bench, PeerAppended(NAME, 7, (), True))
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
    """Who sees the whole log sees its names, by which it can tell tenants apart."""
    tenant, everyone = come(bench, "", "acme", "one"), come(bench, "", "*", "all")
    for talk, name in ((tenant, "one"), (everyone, "all"), (bench.connect("gw"), "gw")):
        talk.call(of_group.GroupOpen("$ns:acme:g", "$ns:acme/#", f"of {name}", None, "latest"))
    assert names_seen(tenant) == {"of one": "one", "of all": "", "of gw": ""}
    assert names_seen(everyone) == {"of one": "$ns:acme/one", "of all": "all", "of gw": "gw"}
    assert names_seen(bench.connect("gw 2")) == {"of one": "$ns:acme/one", "of all": "$ns:*/all", "of gw": "gw"}
