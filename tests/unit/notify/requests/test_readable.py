"""Which topic filters a client is told that it may subscribe to: those of rules that no other rule narrows."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.wire.messages import Role
from store.wire.rights_messages import MOST_READABLE, Permitted, PermittedTold, ReadableFilters, ReadableFiltersTold
from tests.support.store_protocol_bench import WireBench
from tests.support.token_users import token, users_of


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


def allow(*topics: str, of: str = "allow", actions: str = "subscribe", more: str = "") -> str:
    return f"[[rule]]\n{of} = {json.dumps(actions.split())}\ntopics = {json.dumps(topics)}\n{more}\n"


def told(bench: WireBench, rules: str, user: str = "ann", **claims: str) -> ReadableFiltersTold:
    client = bench.connect(f"c-{user}", Role.CLIENT, judge=users_of(rules), password=token(user, **claims))
    answer = client.call(ReadableFilters())
    assert isinstance(answer, ReadableFiltersTold)
    permitted = client.call(Permitted("subscribe", answer.filters))
    assert permitted == PermittedTold([True] * len(answer.filters))
    return answer


@pytest.mark.parametrize(
    ("rules", "filters"),
    [
        ("", ["#"]),
        (allow("#"), ["#"]),
        (allow("a/#", "#"), ["#"]),
        ('default = "allow"\n', ["#"]),
        ('default = "allow"\n' + allow("a/secret", of="deny") + allow("b/#"), ["b/#"]),
        (allow("a/+/b", "+/a", "a/#", "a/b"), ["a/#", "+/a", "a/b", "a/+/b"]),
        (allow("a/#", actions="publish retain replay"), []),
        (allow("devices/%u/#"), ["devices/ann/#"]),
        (allow("devices/%c/#", "x%c"), []),
        (allow("a/secret", of="deny") + allow("a/#", "b/#"), ["b/#"]),
        (allow("+/secret/#", of="deny") + allow("a/b", "b/#", "+/x"), ["+/x", "a/b"]),
        (allow("a/#") + allow("a/secret", of="deny"), ["a/#"]),
        (allow("a/#", more='users = ["bob"]') + allow("b/#", more='clients = ["c-*"]') + allow("c/#"), ["c/#"]),
        (allow("a/#", more='groups = ["billing"]'), ["a/#"]),
        (allow("a/#", more='namespaces = ["acme"]'), []),
        (allow("$SYS/#", "$share/g/a", "$delayed/#", "$ns:acme/#", "$dead/g/#", "$own/#"), ["$own/#", "$dead/g/#"]),
        (allow("x" * 1_025, "y" * 1_024), ["y" * 1_024]),
    ],
)
def test_filters_of_rules(bench: WireBench, rules: str, filters: list[str]) -> None:
    assert told(bench, rules) == ReadableFiltersTold(filters, True)


@pytest.mark.parametrize(
    ("user", "filters"),
    [
        *((user, []) for user in ("#", "+", "a/b", "x/#", "a/../b", "$SYS")),
        ("%c", ["%c", "%c/#", "devices/%c"]),
        ("ann", ["ann", "ann/#", "devices/ann"]),
    ],
)
def test_no_name_makes_a_filter_wider(bench: WireBench, user: str, filters: list[str]) -> None:
    assert told(bench, allow("%u/#", "devices/%u", "%u"), user).filters == filters


@pytest.mark.parametrize("namespace", ["acme", "other"])
def test_a_tenant_is_told_of_its_own_namespace(bench: WireBench, namespace: str) -> None:
    rules = allow("line/#", "$dead/g/#", more='namespaces = ["acme"]') + allow("#", more='namespaces = ["none"]')
    found = told(bench, rules, namespace=namespace).filters
    assert found == ([] if namespace == "other" else ["$ns:acme/line/#", "$ns:acme$dead/g/#"])


def test_their_number_is_bounded_and_so_is_a_step(bench: WireBench) -> None:
    many = [f"a/{number:04d}/#" for number in range(150)]
    assert told(bench, allow(*many)) == ReadableFiltersTold(many[:MOST_READABLE], False)
    assert told(bench, allow(*many[:MOST_READABLE]), "bob") == ReadableFiltersTold(many[:MOST_READABLE], True)
    very_many = [f"a/{number:04d}/#" for number in range(3_900)]
    assert told(bench, allow(*very_many[::-1]), "eve").are_all is False


def test_a_store_without_users_allows_everything(bench: WireBench) -> None:
    client = bench.connect("c", Role.CLIENT)
    assert client.call(ReadableFilters()) == ReadableFiltersTold(["#"], True)
    tenant = bench.connect("d", Role.CLIENT, namespace="acme")
    assert tenant.call(ReadableFilters()) == ReadableFiltersTold(["$ns:acme/#"], True)
