"""The right that each kind of frame needs: all of them state one, and without a statement nobody may send it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.requests.permissions import RIGHTS
from notify.requests.users import Origin, Permission
from store.state.consumer_work import ConsumerWork
from store.wire import group_messages as of_group
from store.wire import log_messages as of_log
from store.wire import messages as wire
from store.wire.messages import KINDS, FailureCode, Role
from tests.support.store_protocol_bench import WireBench, failure, message
from tests.support.token_users import token, users_of

OF_CLIENTS = [kind.message for kind in KINDS if Role.CLIENT in kind.senders]
ALL_BUT_THE_LOG = """
[[rule]]
allow = ["publish", "subscribe", "replay"]
topics = ["#", "$dead/#"]
"""
GROUPS = """
[[rule]]
users = ["ann"]
allow = ["subscribe", "replay"]
topics = ["line/#"]
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


@pytest.mark.parametrize("kind", OF_CLIENTS, ids=lambda kind: kind.__name__)
def test_each_kind_that_a_client_may_send_states_its_right(kind: type[wire.WireMessage]) -> None:
    assert kind in RIGHTS, f"{kind.__name__}: state in RIGHTS what it needs, or _none"


def test_no_right_is_stated_for_what_a_client_may_not_send() -> None:
    assert RIGHTS.keys() <= set(OF_CLIENTS)


@pytest.mark.parametrize("rules", ["", ALL_BUT_THE_LOG])
def test_a_kind_without_a_statement_is_refused(bench: WireBench, monkeypatch: pytest.MonkeyPatch, rules: str) -> None:
    """Whether the user has rules or may do everything, and where no users are known."""
    rights: dict[type[wire.WireMessage], object] = RIGHTS  # type: ignore[assignment]
    for kind in (wire.Seek, wire.Publish):
        monkeypatch.delitem(rights, kind)
    judged = bench.connect("judged", Role.CLIENT, judge=users_of(rules), password=token("ann"))
    for client in (judged, bench.connect("not judged", Role.CLIENT)):
        assert failure(client.call(wire.Seek("a", "now", 0))) == FailureCode.NOT_PERMITTED
        assert failure(client.call(wire.Publish(1, wire.Wait.STORED), message(b"x"))) == FailureCode.NOT_PERMITTED
        assert isinstance(client.call(of_log.Topics("a", "")), of_log.TopicsFound)


@pytest.mark.parametrize("rules", ["", ALL_BUT_THE_LOG])
@pytest.mark.parametrize(
    "request_",
    [
        of_log.Segments(0),
        of_log.ReadLog(0, 1),
        of_log.SeekLog(0, 0, 0),
        of_log.ReaderAt("tier", 7),
        of_log.HoldLog("tier"),
        of_log.LocateTable(),
    ],
)
def test_readers_of_the_log_need_its_right(bench: WireBench, request_: wire.WireMessage, rules: str) -> None:
    client = bench.connect("c", Role.CLIENT, judge=users_of(rules), password=token("ann"))
    assert failure(client.call(request_)) == FailureCode.NOT_PERMITTED
    assert list(bench.hub.readers) == []


def test_to_hold_the_log_is_a_right_of_its_own(bench: WireBench) -> None:
    """It fills the disk, so whoever may read the log may not do that by itself."""
    reads = ALL_BUT_THE_LOG.replace('"replay"]', '"replay", "read_log"]')
    client = bench.connect("reader", Role.CLIENT, judge=users_of(reads), password=token("ann"))
    assert isinstance(client.call(of_log.ReaderAt("tier", 0)), of_log.ReaderNoted)
    refused = client.call(of_log.HoldLog("tier"))
    assert failure(refused) == FailureCode.NOT_PERMITTED
    assert bench.store.log_readers.get("tier") is None
    holds = reads.replace('"read_log"]', '"read_log", "hold_log"]')
    client = bench.connect("holder", Role.CLIENT, judge=users_of(holds), password=token("ann"))
    assert isinstance(client.call(of_log.HoldLog("tier")), of_log.LogHeld)
    far = client.call(of_log.HoldLog("tier", 1 << 40))
    assert failure(far) == FailureCode.NO_SUCH_POSITION
    tenant = bench.connect("tenant", Role.CLIENT, namespace="acme")
    assert failure(tenant.call(of_log.HoldLog("tier"))) == FailureCode.NOT_ALLOWED
    assert [name for name, _ in bench.hub.readers] == ["tier"]


def test_where_the_table_of_the_tier_is(bench: WireBench) -> None:
    """As the tier says, as long as it is connected; to those who may read the whole log."""
    reads = ALL_BUT_THE_LOG.replace('"replay"]', '"replay", "read_log"]')
    client = bench.connect("reader", Role.CLIENT, judge=users_of(reads), password=token("ann"))
    assert client.call(of_log.LocateTable()) == of_log.TableLocated("")
    bench.connect("tier", Role.CLIENT).call(of_log.HoldLog("tier"))
    assert failure(client.call(of_log.LocateTable())) == FailureCode.UNAVAILABLE
    for worker in ("one", "other"):
        bench.hub.tier.serve(worker, 0, lambda _: None, "s3://bucket/fleet")
    bench.hub.tier.left("one")
    assert client.call(of_log.LocateTable()) == of_log.TableLocated("s3://bucket/fleet")
    tenant = bench.connect("tenant", Role.CLIENT, namespace="acme")
    assert failure(tenant.call(of_log.LocateTable())) == FailureCode.NOT_ALLOWED
    bench.hub.tier.left("other")
    assert failure(client.call(of_log.LocateTable())) == FailureCode.UNAVAILABLE
    bench.hub.tier.serve("of an older version", 0, lambda _: None)
    assert failure(client.call(of_log.LocateTable())) == FailureCode.UNAVAILABLE


def test_an_action_that_nobody_knows_is_not_allowed() -> None:
    """As one that a later version of a request asks for."""
    found: list[object] = []
    hello = wire.Hello([1], Role.CLIENT, "c", password=token("ann"))
    users_of(ALL_BUT_THE_LOG).admit(hello, Origin(), found.append)
    (user,) = found
    assert user.decide(Permission("retrieve", "line/1")) is False  # type: ignore[attr-defined]


@pytest.mark.parametrize("namespace", ["", "acme"])
def test_lists_show_the_groups_whose_messages_a_user_may_have(bench: WireBench, namespace: str) -> None:
    """By the names that it knows: rules do not have a namespace's prefix."""
    rules = GROUPS if not namespace else f'{GROUPS}namespaces = ["{namespace}"]\n'
    everyone = bench.connect("all", Role.CLIENT, namespace=namespace)
    prefix = f"$ns:{namespace}/" if namespace else ""
    group = f"$ns:{namespace}:g" if namespace else "g"
    for topic_filter in ("line/1", "secret/1"):
        opened = everyone.call(of_group.GroupOpen(group, prefix + topic_filter, "c", None, "latest", tag="a||b"))
        assert isinstance(opened, of_group.GroupOpened)
        everyone.call(of_group.GroupPause(group, prefix + topic_filter, True))
        assert everyone.call(of_group.TellWork(opened.ref, ConsumerWork(sent=7))) == of_group.WorkNoted(True)
    claims = {"namespace": namespace} if namespace else {}
    ann = bench.connect("ann", Role.CLIENT, judge=users_of(rules), password=token("ann", **claims))
    for request in (of_group.GroupList("", 0), of_group.PausedGroups("", 0)):
        listed = ann.call(request)
        assert isinstance(listed, of_group.GroupsListed)
        assert [each.topic_filter for each in listed.groups] == [f"{prefix}line/1"]
    works = [of_group.GroupWork(group, f"{prefix}line/1", ConsumerWork(sent=7))]
    assert ann.call(of_group.ListWork("", 0)) == of_group.WorkListed(works, False)
    tags = [of_group.GroupTags(group, f"{prefix}line/1", "a||b")]
    assert ann.call(of_group.ListTags("", 0)) == of_group.TagsListed(tags, False)
    assert ann.call(of_group.ListTags(group, 1)) == of_group.TagsListed([], False)
