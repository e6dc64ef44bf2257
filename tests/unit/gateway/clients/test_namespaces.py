"""Namespaces: clients of several see nothing of one another, whatever they name alike; what the log has of them."""

import pytest

from gateway.auth.access import AccessParts
from gateway.auth.identity import Certificates, Identity, LoginRefused
from gateway.auth.namespaces import login_name, settled
from gateway.mqtt.packets import (
    Disconnect,
    PubAck,
    Publish,
    RetainHandling,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from gateway.observe.namespace_metrics import NAMESPACES
from store.namespaces import DEFAULT, Namespace, is_namespace, is_reserved, is_servers, namespace_of
from store.state.changes import BanKind, BanSet, Subscribed, SubscriptionState
from tests.support.mqtt_bench import Bench, Client
from tests.support.mqtt_packet_client import access_of
from tests.unit.conftest import StartBench

ACME, BETA = Namespace("acme"), Namespace("beta")
EVERYBODY = ("", "acme", "beta")

IN_LOG = {
    "line/7": "$ns:acme/line/7",
    "/line": "$ns:acme//line",
    "#": "$ns:acme/#",
    "+/x": "$ns:acme/+/x",
    "$SYS/#": "$ns:acme$SYS/#",
    "$dead/G/t": "$ns:acme$dead/G/t",
    "$share/G/line/#": "$share/$ns:acme:G/$ns:acme/line/#",
    "$share/G/$dead/#": "$share/$ns:acme:G/$ns:acme$dead/#",
    "$share": "$ns:acme$share",
}


@pytest.mark.parametrize("topic_filter", IN_LOG)
def test_how_the_log_has_a_filter(topic_filter: str) -> None:
    found = ACME.topic_filter(topic_filter)
    assert found == IN_LOG[topic_filter]
    assert ACME.plain_filter(found) == topic_filter
    assert ACME.has_filter(found)
    assert not any(other.has_filter(found) for other in (DEFAULT, BETA, Namespace("acm"), Namespace("acme-1")))
    assert DEFAULT.topic_filter(topic_filter) == DEFAULT.plain_filter(topic_filter) == topic_filter
    assert DEFAULT.has_filter(topic_filter)
    assert not ACME.has_filter(topic_filter)


def test_names_say_their_namespace() -> None:
    assert namespace_of(ACME.topic("a")) == namespace_of(ACME.client_id("c")) == namespace_of(ACME.group("g")) == ACME
    assert namespace_of("acme/a") == namespace_of("$SYS/x") == namespace_of("$ns:") == DEFAULT
    assert is_servers("$SYS/#")
    assert not is_servers("$foo/#")
    assert is_servers("$ns:acme$SYS/#")
    assert not is_servers("#")


@pytest.mark.parametrize("name", ["", "A", "a/b", "a$", "a:b", "-a", "ä", "a" * 33, "a\n"])
def test_invalid_names_of_namespaces(name: str) -> None:
    assert not is_namespace(name)


@pytest.mark.parametrize("name", ["$ns:", "$ns:acme/a", "$ns:x$SYS", "$share/$ns:acme:g/a", "$share/g/$ns:acme/#"])
def test_reserved_names_of_clients(name: str) -> None:
    assert is_reserved(name)


@pytest.mark.parametrize("first", EVERYBODY)
@pytest.mark.parametrize("other", EVERYBODY)
def test_messages_stay_in_their_namespace(bench: Bench, first: str, other: str) -> None:
    reader = bench.connect("reader", namespace=first)
    reader.subscribe("#", qos=2)
    for filters in ("+/+", "a/b", "a/#"):
        reader.subscribe(filters, qos=1)
    writer = bench.connect("writer", namespace=other)
    for qos in (0, 1, 2):
        writer.publish("a/b", b"%d" % qos, qos=qos)
        writer.publish("a/b", b"expires %d" % qos, qos=qos, message_expiry_interval=100)
        writer.publish("a/b", b"aliased %d" % qos, qos=qos, topic_alias=1)
    found = [packet for packet in reader.received() if isinstance(packet, Publish)]
    assert {message.topic_name for message in found} == ({"a/b"} if first == other else set())
    assert len(found) >= 3 if first == other else not found


def test_namespace_topics_look_the_same_to_one_subscriber_or_many(bench: Bench) -> None:
    readers = [bench.connect(f"r{i}", version=version, namespace="acme") for i, version in enumerate((4, 4, 5, 5))]
    aliased = bench.connect("aliased", namespace="acme", topic_alias_maximum=10)
    for reader in (*readers, aliased):
        reader.subscribe("line/#", qos=0)
    writer = bench.connect("w", namespace="acme")
    for number in range(3):
        writer.publish("line/7", b"%d" % number)
    for reader in readers:
        assert [(each.topic_name, each.payload) for each in reader.messages()] == [
            ("line/7", b"%d" % number) for number in range(3)
        ]
    assert [each.topic_name for each in aliased.messages()] == ["line/7", "", ""]


def test_a_topic_that_was_just_taken_from_a_tenant_is_not_let_in_from_others(bench: Bench) -> None:
    """The turn remembers the topic that it checked last, as it is in the log."""
    reader = bench.connect("reader", namespace="acme")
    reader.subscribe("#")
    thief = bench.connect("thief")
    bench.connect("w", namespace="acme").publish("a", b"own")
    thief.publish("$ns:acme/a", b"foreign", qos=1)
    assert thief.one(PubAck).reason_code is ReasonCode.NOT_AUTHORIZED
    assert reader.payloads() == [b"own"]


@pytest.mark.parametrize("namespace", ["", "beta"])
def test_publish_into_another_namespace_is_impossible(bench: Bench, namespace: str) -> None:
    reader = bench.connect("reader", namespace="acme")
    for topic_filter in ("#", "$dead/#", "$SYS/#", "+/+", "$delayed/#", "$ns/#"):
        reader.subscribe(topic_filter, qos=1)
    reader.received()
    thief = bench.connect("thief", namespace=namespace)
    for topic in ("$ns:acme/a", "$ns:acme$dead/g/a", "$delayed/0/$ns:acme/a", "$dead/$ns:acme:g/a"):
        for qos in (1, 2):
            thief.publish(topic, b"x", qos=qos, retain=qos == 1)
        thief.publish(topic, b"x")
        thief.publish(topic, b"x", qos=1, topic_alias=1)
    answers = thief.received()
    assert {getattr(answer, "reason_code", None) for answer in answers} == {ReasonCode.NOT_AUTHORIZED}
    thief.publish("a", b"x", qos=1, response_topic="$ns:acme/a")
    assert thief.one(PubAck).reason_code is ReasonCode.NOT_AUTHORIZED
    bench.pass_time(2)
    assert [each for each in reader.messages() if each.payload == b"x"] == []


@pytest.mark.parametrize("namespace", ["", "beta"])
def test_subscription_to_another_namespace_is_refused(bench: Bench, namespace: str) -> None:
    thief = bench.connect("thief", namespace=namespace, session_expiry_interval=100)
    filters = ("$ns:acme/#", "$ns:acme/+", "$ns:acme$dead/#", "$share/g/$ns:acme/#", "$share/$ns:acme:g/a", "$ns:/#")
    for topic_filter in filters:
        refused = thief.subscribe(topic_filter, qos=1)
        assert refused.reason_codes == (ReasonCode.NOT_AUTHORIZED,)
        assert refused.properties.reason_string == f"{topic_filter}: not allowed"
        replayed = thief.subscribe(topic_filter, qos=1, user_properties=(("penstock-from", "earliest"),))
        assert replayed.reason_codes == (ReasonCode.NOT_AUTHORIZED,)
    bench.connect("w", namespace="acme").publish("a", b"x", qos=1)
    assert thief.received() == []


@pytest.mark.parametrize("namespace", ["", "beta"])
def test_session_of_another_namespace_cannot_be_taken_over(bench: Bench, namespace: str) -> None:
    owner = bench.connect("c", namespace="acme", session_expiry_interval=100)
    owner.subscribe("a", qos=1)
    thief = Client(bench, 5, namespace)
    assert thief.connect("$ns:acme/c", clean_start=False).reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    same = bench.connect("c", namespace=namespace, clean_start=False)
    bench.connect("w", namespace="acme").publish("a", b"x", qos=1)
    assert owner.payloads() == [b"x"]
    assert same.received() == []


def test_a_client_is_told_its_name_without_the_prefix(bench: Bench) -> None:
    client = Client(bench, 5, "acme")
    name = client.connect("").properties.assigned_client_identifier
    assert name is not None
    assert name.startswith("penstock-")
    assert f"$ns:acme/{name}" in bench.broker.registry.sessions


def test_sessions_wills_and_retained_messages_are_apart(bench: Bench) -> None:
    clients = {}
    for name in EVERYBODY:
        will = Will("wills", name.encode(), properties=Properties())
        clients[name] = bench.connect("c", namespace=name, session_expiry_interval=100, will=will)
        clients[name].subscribe("a", qos=1)
        watcher = bench.connect("watcher", namespace=name)
        watcher.subscribe("wills")
        clients[name + " watcher"] = watcher
        bench.connect("w", namespace=name).publish("kept", b"kept " + name.encode(), qos=1, retain=True)
    for name in EVERYBODY:
        clients[name].lose()
    bench.wait_safe()
    bench.pass_time(1)
    for name in EVERYBODY:
        assert [(each.topic_name, each.payload) for each in clients[name + " watcher"].messages()] == [
            ("wills", name.encode())
        ]
        bench.connect("w", namespace=name).publish("a", b"for " + name.encode(), qos=1)
    bench.restart()
    for name in EVERYBODY:
        back = bench.connect("c", namespace=name, clean_start=False, session_expiry_interval=100)
        assert [(each.topic_name, each.payload) for each in back.messages()] == [("a", b"for " + name.encode())]
        back.subscribe("#")
        assert [(each.topic_name, each.payload, each.retain) for each in back.messages()] == [
            ("kept", b"kept " + name.encode(), True)
        ]
        back.send(Unsubscribe(9, ("a", "nothing")))
        assert back.one(UnsubAck).reason_codes == (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)


def test_foreign_subscriptions_in_the_log_are_ignored(bench: Bench) -> None:
    """A log from before namespaces may have such a filter."""
    owner = bench.connect("old", session_expiry_interval=100)
    bench.broker.journal.record(Subscribed("old", [SubscriptionState("$ns:acme/#", 1), SubscriptionState("b", 1)]))
    bench.run()
    owner.lose()
    bench.connect("w", namespace="acme").publish("a", b"secret", qos=1)
    bench.connect("w").publish("b", b"own", qos=1)
    back = bench.connect("old", clean_start=False, session_expiry_interval=100)
    assert back.payloads() == [b"own"]


def test_delayed_shared_and_replayed(bench: Bench) -> None:
    members = {name: bench.connect("m", namespace=name) for name in EVERYBODY}
    for member in members.values():
        assert member.subscribe("$share/g/d/#", qos=1).reason_codes == (1,)
    for name in EVERYBODY:
        writer = bench.connect("w", namespace=name)
        writer.publish("$delayed/1/d/1", b"late " + name.encode(), qos=1)
        writer.publish("d/2", b"now " + name.encode(), qos=1)
    bench.wait_safe()
    bench.pass_time(2)
    bench.run()
    bench.pass_time(2)
    for name, member in members.items():
        found = [(each.topic_name, each.payload) for each in member.messages()]
        assert sorted(found) == [("d/1", b"late " + name.encode()), ("d/2", b"now " + name.encode())]
    for name in EVERYBODY:
        for topic_filter in ("#", "d/+", "+/2", "d/2"):
            replayer = bench.connect("replayer", namespace=name)
            replayer.subscribe(topic_filter, user_properties=(("penstock-from", "earliest"),))
            found = [(each.topic_name, each.payload) for each in replayer.messages()]
            assert ("d/2", b"now " + name.encode()) in found
            assert {payload.split()[1:] == [name.encode()] * bool(name) for _, payload in found} == {True}


def test_sys_topics_count_a_tenants_own(start_bench: StartBench) -> None:
    bench = start_bench(sys_interval_s=1)
    operator, tenant = bench.connect("o"), bench.connect("t", namespace="acme")
    bench.connect("w").publish("a", b"12345")
    bench.connect("x", namespace="acme").publish("a", b"123")
    values = {}
    for client in (operator, tenant):
        client.subscribe("#")
        assert client.messages() == []  # a wildcard at the beginning does not match them
        client.subscribe("$SYS/#")
        values[client] = {each.topic_name: each.payload for each in client.messages()}
    assert values[tenant]["$SYS/broker/clients/connected"] == b"2"
    assert values[tenant]["$SYS/broker/publish/messages/received"] == b"1"
    assert values[tenant]["$SYS/broker/publish/bytes/received"] == b"3"
    assert values[operator]["$SYS/broker/clients/connected"] == b"4"
    assert values[operator]["$SYS/broker/publish/bytes/received"] == b"8"
    bench.connect("y", namespace="acme").publish("a", b"1")
    tenant.received()
    bench.pass_time(2)
    live = {each.topic_name: each.payload for each in tenant.messages()}
    assert live["$SYS/broker/clients/connected"] == b"3"
    assert live.keys() <= values[tenant].keys()


def test_a_topic_too_long_for_its_prefix_is_refused(bench: Bench) -> None:
    client = bench.connect("c", namespace="acme")
    longest = "a" * (65_535 - len("$ns:acme/"))
    assert client.subscribe(longest).reason_codes == (0,)
    client.publish(longest, b"fits", qos=1)
    assert [packet.payload for packet in client.received() if isinstance(packet, Publish)] == [b"fits"]
    client.publish(longest + "a", b"x", qos=1)
    refused = client.one(PubAck)
    assert refused.reason_code is ReasonCode.TOPIC_NAME_INVALID
    assert "with its namespace" in str(refused.properties.reason_string)
    assert client.subscribe(longest + "a").reason_codes == (ReasonCode.TOPIC_FILTER_INVALID,)
    deepest = "/".join("a" * 199)
    client.publish(deepest, b"x", qos=1)
    assert client.one(PubAck).reason_code is ReasonCode.SUCCESS
    client.publish(deepest + "/a", b"x", qos=1)
    assert client.one(PubAck).reason_code is ReasonCode.TOPIC_NAME_INVALID


def test_so_many_namespaces_and_no_more(start_bench: StartBench) -> None:
    bench = start_bench(max_namespaces=2)
    clients = [bench.connect("c", namespace=name) for name in ("acme", "beta")]
    third = Client(bench, 5, "gamma")
    assert third.connect("c").reason_code is ReasonCode.QUOTA_EXCEEDED
    bench.connect("c")  # the default one is none of them
    clients[0].disconnect()
    bench.connect("c", namespace="gamma")
    clients[1].send(Disconnect())


def test_receipts_name_the_queue_as_the_client_does(bench: Bench) -> None:
    client = bench.connect("c", namespace="acme")
    client.publish("a/b", b"x", qos=1, user_properties=(("penstock-receipt", "1"),))
    bench.wait_safe()
    assert dict(client.one(PubAck).properties.user_properties)["penstock-queue"] == "a/b"


def test_no_local_holds_in_a_namespace(bench: Bench) -> None:
    client = bench.connect("c", namespace="acme")
    client.subscribe(SubscriptionRequest("a", no_local=True, retain_handling=RetainHandling.DO_NOT_SEND))
    client.publish("a", b"own")
    bench.connect("c").publish("a", b"other namespace")
    bench.connect("d", namespace="acme").publish("a", b"other client")
    assert client.payloads() == [b"other client"]


# --- which namespace


def test_all_who_name_a_namespace_name_the_same() -> None:
    user = Identity("acme/alice")
    for named in ((), (("the listener", "acme"),), (("the listener", ""), ("its certificate", "acme"))):
        found = settled(user, named, "/")
        assert isinstance(found, Identity)
        assert (found.namespace, found.username, found.login) == ("acme", "alice", "acme/alice")
        assert found.account == "$ns:acme/alice"
    for identity, named in (
        (user, (("the listener", "beta"),)),
        (Identity("alice", namespace="acme"), (("the listener", "beta"),)),
        (Identity("acme/alice", namespace="beta"), ()),
        (Identity("alice"), (("the listener", "beta"), ("its certificate", "acme"))),
    ):
        refused = settled(identity, named, "/")
        assert isinstance(refused, LoginRefused)
        assert refused.reason_code is ReasonCode.NOT_AUTHORIZED
        assert "acme" in refused.message
        assert "beta" in refused.message
    assert isinstance(settled(Identity("Acme!/alice"), (), "/"), LoginRefused)
    assert settled(Identity("acme/alice"), (), "") == Identity("acme/alice")
    assert Identity("alice").account == "alice"


@pytest.mark.parametrize("separator", ["", "/"])
@pytest.mark.parametrize("named", [(), (("the listener", "acme"),), (("the listener", "beta"),)])
def test_no_user_is_called_as_those_of_a_namespace(named: tuple[tuple[str, str], ...], separator: str) -> None:
    """Its account, by which sessions, bans, quotas and the audit log know it, would be that of a tenant's user."""
    for identity in (Identity("$ns:acme/x"), Identity("$ns:acme/x", namespace="acme"), Identity("$ns:", namespace="b")):
        assert isinstance(settled(identity, named, separator), LoginRefused)


def test_a_listeners_users_are_looked_up_by_their_whole_name() -> None:
    assert login_name("alice", "acme", "/") == "acme/alice"
    assert login_name("beta/alice", "acme", "/") == "beta/alice"  # and is refused once it is known who it is
    assert login_name("alice", "", "/") == login_name("alice", "acme", "") == "alice"
    assert login_name(None, "acme", "/") is None


@pytest.mark.parametrize(("kind", "value"), [("user", "$ns:acme/dev"), ("client_id", "$ns:acme/c")])
def test_a_ban_is_of_a_name_in_its_namespace(start_bench: StartBench, kind: BanKind, value: str) -> None:
    """It ends that connection and lets nobody in again by this name, and no other namespace notices."""
    bench = start_bench(access=access_of(AccessParts((Certificates(),), allow_anonymous=True)))
    clients = {namespace: bench.connect("c", user="dev", namespace=namespace) for namespace in EVERYBODY}
    bench.hub.bans.set(BanSet(kind, value, reason="r", set_by="op"))
    bench.run()
    assert [namespace for namespace in EVERYBODY if clients[namespace].is_closed] == ["acme"]
    assert bench.client(user="dev", namespace="acme").connect("c").reason_code is ReasonCode.BANNED
    assert bench.client(user="dev", namespace="beta").connect("c").reason_code is ReasonCode.SUCCESS


def test_sessions_are_counted_by_namespace(bench: Bench) -> None:
    def counted() -> dict[str, int]:
        (figure,) = (each for each in NAMESPACES if each.name == "penstock_namespace_sessions")
        found = dict(bench.store.sessions.namespaces)
        assert figure.read(bench.broker) == (found if bench.broker.store.status is not None else {})
        return found

    for name in EVERYBODY:
        bench.connect("stays", namespace=name, session_expiry_interval=100).disconnect()
        bench.connect("goes", namespace=name).disconnect()
    bench.connect("here", namespace="acme", session_expiry_interval=100)
    assert counted() == {"acme": 2, "beta": 1}
    bench.restart()
    assert counted() == {"acme": 2, "beta": 1}
    bench.connect("stays", namespace="beta", clean_start=True).disconnect()
    assert counted() == {"acme": 2}
