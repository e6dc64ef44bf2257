"""Permissions to publish and subscribe, by a permissions file, with real servers and sockets."""

import signal
import subprocess
from pathlib import Path

import pytest

from gateway.mqtt.packets import (
    ConnAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import IN_ALL_TOPOLOGIES, ServerFactory, SharedServers
from tests.interop.programs import penstock
from tests.support.mqtt_packet_client import Device, reload, until, write_passwords
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

RULES = """
[[rule]]
users = ["admin"]
allow = ["publish", "retain", "subscribe"]
topics = ["#", "$SYS/#"]

[[rule]]
deny = ["subscribe"]
topics = ["devices/+/secret"]

[[rule]]
users = ["s*"]
allow = ["publish", "subscribe"]
topics = ["devices/%u/#", "users/%u"]
max_qos = 1

[[rule]]
allow = ["retain"]
topics = ["devices/%u/state"]
"""
ADMIN = ("admin", "a")
SENSOR = ("s1", "s")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("files")
    rules = folder / "permissions.toml"
    rules.write_text(RULES)
    passwords = write_passwords(folder / "passwords", dict([ADMIN, SENSOR]))
    return {"auth.password_file": passwords, "auth.permissions_file": rules}


@pytest.fixture
def server(shared_server: SharedServers, files: dict[str, object]) -> PenstockServer:
    return shared_server(settings=files)


def device(server: PenstockServer, client_id: str, who: tuple[str, str] = SENSOR, version: int = 5) -> Device:
    connected = Device(server.port, client_id, version)
    assert connected.connect(*who).reason_code is ReasonCode.SUCCESS
    return connected


@pytest.fixture
def admin(server: PenstockServer) -> Device:
    """Sees everything."""
    admin = device(server, "admin", ADMIN)
    assert admin.subscribe("#", 2) is ReasonCode.GRANTED_QOS_2
    return admin


@pytest.mark.catalogue("G27")
def test_allowed_messages_arrive_and_others_are_refused(server: PenstockServer, admin: Device) -> None:
    sensor = device(server, "s1")
    for _ in range(2):  # asked, and remembered
        assert sensor.published("devices/s1/t", b"1") is ReasonCode.SUCCESS
        assert sensor.published("devices/s2/t", b"2") is ReasonCode.NOT_AUTHORIZED
        sensor.publish("devices/s2/t", b"3")
        sensor.publish("users/s1", b"4")
        sensor.publish("$delayed/0/devices/s2/t", b"5")
        assert sensor.published("$delayed/0/devices/s1/t", b"6") is ReasonCode.SUCCESS
    got = [admin.next(Publish).payload for _ in range(6)]
    assert sorted(got) == [b"1", b"1", b"4", b"4", b"6", b"6"]


def test_retain_and_qos_are_permissions_of_their_own(server: PenstockServer, admin: Device) -> None:
    """The state is taken away at the end: others subscribe to all."""
    sensor = device(server, "s1")
    assert sensor.published("devices/s1/t", retain=False) is ReasonCode.SUCCESS
    assert sensor.published("devices/s1/t", retain=True) is ReasonCode.NOT_AUTHORIZED
    assert sensor.published("devices/s1/state", retain=True) is ReasonCode.SUCCESS
    for retain in (False, True):
        sensor.publish("devices/s1/state", b"", 2, retain=retain)
        assert sensor.next(PubRec).reason_code is ReasonCode.NOT_AUTHORIZED
    assert sensor.published("devices/s1/t", retain=True) is ReasonCode.NOT_AUTHORIZED
    assert sensor.published("devices/s1/state", retain=True) is ReasonCode.SUCCESS


def test_an_old_client_is_answered_and_ignored(server: PenstockServer, admin: Device) -> None:
    sensor = device(server, "s1", version=4)
    assert sensor.published("elsewhere", b"no") is ReasonCode.SUCCESS
    sensor.publish("elsewhere", b"no", 2)
    packet_id = sensor.next(PubRec).packet_id
    sensor.send(PubRel(packet_id))
    assert sensor.next(PubComp).packet_id == packet_id
    assert sensor.subscribe("elsewhere") >= ReasonCode.UNSPECIFIED_ERROR
    assert sensor.published("devices/s1/t", b"yes") is ReasonCode.SUCCESS
    assert admin.next(Publish).payload == b"yes"
    line = "publish to elsewhere ignored: not allowed"  # of which there are a few a second
    until(lambda: sensor.published("elsewhere") is ReasonCode.SUCCESS and line in server.log_text())


def test_a_topic_alias_is_judged_by_its_topic(server: PenstockServer, admin: Device) -> None:
    sensor = device(server, "s1")
    sensor.publish("elsewhere", b"no", topic_alias=1)
    sensor.publish("", b"no", topic_alias=1)
    sensor.publish("devices/s1/t", b"yes", topic_alias=1)
    sensor.publish("", b"again", topic_alias=1)
    assert [admin.next(Publish).payload for _ in range(2)] == [b"yes", b"again"]


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("devices/s1/t", ReasonCode.GRANTED_QOS_1),
        ("users/s1", ReasonCode.GRANTED_QOS_1),
        ("devices/s1/#", ReasonCode.NOT_AUTHORIZED),  # the secret is in there
        ("devices/s2/t", ReasonCode.NOT_AUTHORIZED),
        ("#", ReasonCode.NOT_AUTHORIZED),
        ("devices/+/t", ReasonCode.NOT_AUTHORIZED),
        ("$SYS/#", ReasonCode.NOT_AUTHORIZED),
        ("$share/g/devices/s2/t", ReasonCode.NOT_AUTHORIZED),
    ],
)
def test_subscriptions(server: PenstockServer, topic_filter: str, expected: ReasonCode) -> None:
    assert device(server, "s1").subscribe(topic_filter, 2) is expected


def test_each_subscription_of_a_packet_has_its_answer(server: PenstockServer) -> None:
    sensor = device(server, "s1")
    wanted = [("devices/s1/a", 0), ("x", 1), ("devices/s1/b", 2), ("y/#", 0)]
    sensor.send(Subscribe(1, tuple(SubscriptionRequest(each, QoS(qos)) for each, qos in wanted)))
    assert sensor.next(SubAck).reason_codes == (0, 0x87, 1, 0x87)


def test_wills_are_judged_at_connect(server: PenstockServer, admin: Device) -> None:
    for topic, retain, qos in (("elsewhere", False, 0), ("devices/s1/t", True, 0), ("devices/s1/t", False, 2)):
        sensor = Device(server.port, "s1")
        answer = sensor.connect(*SENSOR, will=Will(topic, b"will", QoS(qos), retain))
        assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
    sensor = Device(server.port, "s1")
    assert sensor.connect(*SENSOR, will=Will("devices/s1/t", b"will")).reason_code is ReasonCode.SUCCESS
    sensor.close()
    assert admin.next(Publish).payload == b"will"


HIDDEN = """
[[rule]]
deny = ["subscribe"]
topics = ["secret/#"]

[[rule]]
users = ["reader"]
allow = ["subscribe", "replay"]
topics = ["open/#", "$dead/#"]
groups = ["billing", "%u-*"]

[[rule]]
users = ["writer"]
allow = ["publish", "subscribe"]
topics = ["open/#", "%c/#"]
"""


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("hiding")
    rules = folder / "permissions.toml"
    rules.write_text(HIDDEN)
    passwords = write_passwords(folder / "passwords", dict.fromkeys(("reader", "writer", "$SYS", "$dead"), "p"))
    ids = {"auth.client_ids": "%u"}
    return {"auth.password_file": passwords, "auth.permissions_file": rules, **ids}


@pytest.mark.parametrize(
    ("topic_filter", "is_granted"),
    [
        ("$dead/g/open/x", True),
        ("$dead/+/open/#", True),
        ("$share/billing/$dead/g/open/x", True),
        ("$dead/g/secret/x", False),
        ("$dead/+/secret/#", False),
        ("$dead/+/+/x", False),
        ("$dead/#", False),
        ("$dead/g", False),  # of a topic that is too long, and so not told
        ("$dead/g/$dead/h/secret/x", False),
        ("$dead/g/+/+/secret/x", False),
        ("$share/billing/$dead/g/secret/x", False),
        ("$delayed/0/secret/x", False),
        ("$share/billing/$share/x/secret/x", False),
        ("$share/billing/open/x", True),
        ("$share/reader-1/open/x", True),
        ("$share/writer-1/open/x", False),
        ("$share/reader/open/x", False),
        ("open/x", True),
    ],
)
def test_topic_inside_another_topic_is_judged(
    shared_server: SharedServers, hiding: dict[str, object], topic_filter: str, is_granted: bool
) -> None:
    reader = device(shared_server(settings=hiding), "reader", ("reader", "p"))
    expected = ReasonCode.GRANTED_QOS_1 if is_granted else ReasonCode.NOT_AUTHORIZED
    assert reader.subscribe(topic_filter, 1) is expected


def test_a_dead_letter_is_a_message_of_its_topic(shared_server: SharedServers, hiding: dict[str, object]) -> None:
    writer = device(shared_server(settings=hiding), "writer", ("writer", "p"))
    assert writer.subscribe("$dead/g/open/x") is ReasonCode.GRANTED_QOS_0
    assert writer.subscribe("$dead/g/other/x") is ReasonCode.NOT_AUTHORIZED
    assert writer.subscribe("$dead/g/#") is ReasonCode.NOT_AUTHORIZED
    assert writer.published("$dead/g/open/x") is ReasonCode.NOT_AUTHORIZED
    assert writer.published("$delayed/0/$dead/g/open/x") is ReasonCode.NOT_AUTHORIZED
    assert writer.subscribe("$share/any/open/x") is ReasonCode.NOT_AUTHORIZED  # some rule names groups, and this not


def test_history_is_a_right_of_its_own(shared_server: SharedServers, hiding: dict[str, object]) -> None:
    server = shared_server(settings=hiding)
    reader, writer = (device(server, name, (name, "p")) for name in ("reader", "writer"))
    assert writer.published("open/x", b"old") is ReasonCode.SUCCESS
    for history in ("earliest", "@0", "-1h"):
        for topic_filter in ("open/x", "open/+", "$share/any/open/x"):
            assert writer.subscribe(topic_filter, history=history) is ReasonCode.NOT_AUTHORIZED
        assert reader.subscribe("secret/x", history=history) is ReasonCode.NOT_AUTHORIZED
    assert writer.subscribe("open/x") is ReasonCode.GRANTED_QOS_0
    assert reader.subscribe("open/x", history="earliest") is ReasonCode.GRANTED_QOS_0
    assert reader.next(Publish).payload == b"old"


def test_names_that_begin_as_the_servers_topics(shared_server: SharedServers, hiding: dict[str, object]) -> None:
    server = shared_server(settings=hiding)
    for name in ("$SYS", "$dead"):
        evil = device(server, name, (name, "p"))
        for topic_filter in (f"{name}/#", f"{name}/+/secret", "$SYS/broker/uptime"):
            assert evil.subscribe(topic_filter) is ReasonCode.NOT_AUTHORIZED


def test_rules_for_client_identifiers_that_each_may_have(penstock_server: ServerFactory, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    passwords = write_passwords(tmp_path / "passwords", {"a": "p"})
    settings: dict[str, object] = {"auth.permissions_file": rules, "auth.password_file": passwords}
    rules.write_text(ALLOW_ALL + '[[rule]]\nallow = ["publish"]\ntopics = ["devices/%c/#"]\n')
    line = rf"penstock: {rules}: line 4: rule 2: %c .* write %u, .* auth.client_ids = "
    for name, value in (("allow_anonymous", False), ("client_ids", "x*"), ("jwt_client_id_claim", "cid")):
        with pytest.raises(RuntimeError, match=line):
            penstock_server(settings=settings | {f"auth.{name}": value})
    server = penstock_server(settings=settings | {"auth.client_ids": "%u"})
    assert Device(server.port, "a").connect("a", "p").reason_code is ReasonCode.SUCCESS
    rules.write_text(ALLOW_ALL)
    server = penstock_server(settings=settings)
    rules.write_text('[[rule]]\nallow = ["publish"]\ntopics = ["a/%c/#"]\n')
    server.signal(signal.SIGHUP)
    until(lambda: f"{rules}: line 1: rule 1: %c" in server.log_text())
    assert device(server, "x", ("a", "p")).published("free") is ReasonCode.SUCCESS


ALLOW_ALL = '[[rule]]\nallow = ["publish", "retain", "subscribe"]\ntopics = ["#"]\n'


def test_a_reload_ends_what_is_not_allowed_any_more(penstock_server: ServerFactory, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(ALLOW_ALL)
    server = penstock_server(settings={"auth.permissions_file": rules})
    publisher, reader, absent = (Device(server.port, name) for name in ("publisher", "reader", "absent"))
    for each in (publisher, reader, absent):
        each.connect(clean_start=each is not absent, session_expiry_interval=100)
        assert each is publisher or each.subscribe("a/#", 1) == 1
        assert each is publisher or each.subscribe("b", 1) == 1
    absent.close()
    assert publisher.published("a/1", b"before") is ReasonCode.SUCCESS
    assert reader.next(Publish).payload == b"before"
    rules.write_text('[[rule]]\ndeny = ["subscribe"]\ntopics = ["a/+"]\n' + ALLOW_ALL)
    reload(server)
    until(lambda: "taken away" in server.log_text())
    assert publisher.published("a/1", b"after") is ReasonCode.SUCCESS
    assert publisher.published("b", b"still") is ReasonCode.SUCCESS
    assert reader.next(Publish).payload == b"still"
    back = Device(server.port, "absent")
    assert back.connect(clean_start=False, session_expiry_interval=100).session_present
    assert back.next(Publish).payload == b"still"
    rules.write_text('[[rule]]\ndeny = ["publish"]\ntopics = ["a/+"]\n' + ALLOW_ALL)
    reload(server)
    until(lambda: publisher.published("a/1") is ReasonCode.NOT_AUTHORIZED)
    assert publisher.published("b") is ReasonCode.SUCCESS


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[rule]\n", "not TOML: "),
        (ALLOW_ALL + "\n# more\n[[rule]]\nallow = 1\n", ": line 6: rule 2: "),
    ],
)
def test_a_wrong_file_is_one_line_that_says_where(tmp_path: Path, text: str, complaint: str) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(text)
    config = tmp_path / "penstock.toml"
    config.write_text(f'[auth]\npermissions_file = "{rules}"\n')
    command = penstock(
        "serve", "--config", str(config), "--data", str(tmp_path / "d"), "--listen", "mqtt://127.0.0.1:0"
    )
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert f"{rules}" in done.stderr.decode()
    assert complaint in done.stderr.decode()


def test_more_topics_than_a_connection_remembers(server: PenstockServer, admin: Device) -> None:
    sensor = device(server, "s1")
    for number in range(600):
        sensor.publish(f"devices/s1/{number}")
        sensor.publish(f"devices/s2/{number}")
    topics = [admin.next(Publish).topic_name for _ in range(600)]
    assert sorted(topics) == sorted(f"devices/s1/{number}" for number in range(600))
    assert isinstance(Device(server.port, "x").connect(*SENSOR), ConnAck)
