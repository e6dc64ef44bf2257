"""What a client may name: topics of its own namespace that no server keeps for itself, and its own name as a user."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.local.own_names import ALL
from store.errors import WireError
from store.namespaces import is_servers_own, publish_fault
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute
from store.wire import messages as wire
from store.wire.messages import Append, Publish, Role
from tests.support.store_protocol_bench import WireBench, message
from tests.support.token_users import token, users_of

OF_SERVERS = ("$SYS/broker/uptime", "$SYS", "$dead/g/line/1", "$dead", "$share/g/t", "$delayed/5/t")
OTHERS = (
    "$ns:",
    "$ns:beta/x",
    "$ns:beta$dead/g/x",
    "$ns:Beta/x",
    "$ns:acmeX/x",
    "$ns:acme!/x",
    "$ns:acme:g",
    "$ns:acme",
)
ORDINARY = ("line/7", "$SYSTEM/x", "$mine/x", "a/$SYS/x", "$")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


def refusals(bench: WireBench, namespace: str, topics: list[str]) -> dict[str, bool]:
    """Whether an Append and a Publish to each topic is refused."""
    client = bench.connect(f"client of {namespace} for {topics}", Role.CLIENT, namespace=namespace)
    found: dict[str, bool] = {}
    for number, topic in enumerate(topics):
        record = message(b"x", topic.encode())
        answers = (
            client.call(Append(2 * number + 1), record),
            client.call(Publish(2 * number + 2, wire.Wait.STORED), record),
        )
        refused = {isinstance(each, wire.Failed) for each in answers}
        assert len(refused) == 1, answers
        found[topic] = refused.pop()
    return found


def in_log(topic: str, namespace: str) -> str:
    return f"$ns:{namespace}{'' if topic.startswith('$') else '/'}{topic}" if namespace else topic


@pytest.mark.parametrize("namespace", ["", "acme"])
def test_servers_topics_cannot_be_published_to_through_the_store(bench: WireBench, namespace: str) -> None:
    topics = [in_log(topic, namespace) for topic in OF_SERVERS]
    assert refusals(bench, namespace, topics) == dict.fromkeys(topics, True)
    ordinary = [in_log(topic, namespace) for topic in ORDINARY]
    assert refusals(bench, namespace, ordinary) == dict.fromkeys(ordinary, False)


def test_a_client_of_all_namespaces_writes_nothing_of_servers_either(bench: WireBench) -> None:
    topics = [in_log(topic, namespace) for topic in OF_SERVERS for namespace in ("", "acme")]
    assert refusals(bench, ALL, topics) == dict.fromkeys(topics, True)
    ordinary = [in_log(topic, namespace) for topic in ORDINARY for namespace in ("", "acme")]
    assert refusals(bench, ALL, ordinary) == dict.fromkeys(ordinary, False)


@pytest.mark.parametrize("namespace", ["", "acme", ALL])
def test_names_that_no_client_has(bench: WireBench, namespace: str) -> None:
    """Those of other namespaces, those that are none, and those that a tenant would see as others."""
    seen_as = ("$ns:acme/$SYS/x", "$ns:acme/$dead/x", "$ns:acme/$mine/x", "$ns:acme/$ns:beta/x", "$ns:acme/")
    others = [topic for topic in OTHERS if namespace != ALL or not topic.startswith("$ns:beta/")]
    topics = [*others, *seen_as]
    assert refusals(bench, namespace, topics) == dict.fromkeys(topics, True)


@pytest.mark.parametrize("topic", [*OF_SERVERS, *ORDINARY])
def test_the_rule_is_that_of_mqtt(topic: str) -> None:
    for namespace in ("", "acme"):
        assert bool(publish_fault(in_log(topic, namespace))) == is_servers_own(topic)


@pytest.mark.parametrize("subject", ["$ns:acme/x", "$ns:", "$ns:acme"])
@pytest.mark.parametrize("claims", [{}, {"namespace": "acme"}, {"namespace": "beta"}])
def test_no_token_makes_a_user_of_another_namespace(bench: WireBench, subject: str, claims: dict[str, str]) -> None:
    password = token(subject, **claims)
    with pytest.raises(WireError, match=r"not let in \(user\)"):
        bench.connect("c", Role.CLIENT, judge=users_of(), password=password)
    assert bench.connect("c", Role.CLIENT, judge=users_of(), password=token("x", **claims)).is_welcome


def test_a_delayed_message_of_a_user_names_no_mqtt_client(bench: WireBench) -> None:
    """By whose rules, those with %c, it would be judged when it is due."""
    client = bench.connect(
        "c", Role.CLIENT, judge=users_of('[[rule]]\nallow = ["publish"]\ntopics = ["#"]'), password=token("ann")
    )
    left_by = encode_attribute(Attribute.LEFT_BY, client.welcome.left_by)
    due = encode_attribute(Attribute.DUE_MS, bytes(8))
    for sequence, client_id in ((1, b"victim"), (2, b"")):
        batch = RecordBatch()
        batch.append(
            RecordType.MESSAGE,
            b"x",
            topic=b"t",
            client_id=client_id,
            attributes=left_by + due,
            flags=RecordFlag.DELAYED,
        )
        answer = client.call(Append(sequence), bytes(batch))
        assert isinstance(answer, wire.Failed) == bool(client_id), answer
