"""How much clients and users may do, with real servers and sockets."""

import re
import time
import urllib.request
from pathlib import Path

import pytest

from gateway.mqtt.packets import PingReq, PingResp, PubAck, Publish
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import IN_ALL_TOPOLOGIES, ServerFactory, SharedServers
from tests.support.mqtt_packet_client import Device, write_passwords
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

EXCEEDED = ReasonCode.QUOTA_EXCEEDED
OK = ReasonCode.SUCCESS


@pytest.fixture(scope="module")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_passwords(tmp_path_factory.mktemp("users") / "passwords", {"alice": "a", "bob": "b"})


def connected(server: PenstockServer, name: str, *who: str) -> Device:
    device = Device(server.port, name)
    assert device.connect(*who).reason_code is OK
    return device


def of_a_user(server: PenstockServer) -> PenstockServer:
    """What clients of a user share they share at one gateway."""
    return server.one_gateway()


def figures(server: PenstockServer) -> dict[str, float]:
    """What /metrics says, summed over gateways."""
    found: dict[str, float] = {}
    for log in server.gateway_logs():
        url = re.findall(r"^admin (\S+)", log, re.MULTILINE)[-1]
        with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#")):
            name = re.sub(r'process="[^"]*",?', "", name).replace("{}", "").replace(",}", "}")
            found[name] = found.get(name, 0) + float(value)
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "quota",
    [{"client_messages_per_s": 50}, {"client_bytes_per_s": 5_000}, {"client_messages_per_s": 50, "burst_ms": 100}],
    ids=lambda quota: " ".join(quota),
)
def test_fast_publisher_is_slowed_and_loses_nothing(
    shared_server: SharedServers, qos: int, quota: dict[str, int]
) -> None:
    server = shared_server(admin="127.0.0.1:0", settings={f"quota.{name}": each for name, each in quota.items()})
    reader, fast, other = (connected(server, name) for name in ("reader", "fast", "other"))
    reader.subscribe("fast", min(qos, 1))
    started_s = time.monotonic()
    for number in range(150):
        fast.publish("fast", b"%090d" % number, qos)
    assert other.published("other") is OK  # nobody else waits
    found = [reader.next(Publish).payload for _ in range(150)]
    took_s = time.monotonic() - started_s
    assert found == [b"%090d" % number for number in range(150)]
    assert took_s > 1.5  # 150 at 50 a second, less the burst
    assert figures(server)["penstock_quota_pauses_total"] > 0
    assert figures(server)[f'penstock_messages_received_total{{qos="{qos}"}}'] >= 150


def test_message_larger_than_a_seconds_quota_passes(shared_server: SharedServers) -> None:
    server = shared_server(settings={"quota.client_bytes_per_s": 10_000})
    device = connected(server, "d")
    assert device.published("a", bytes(30_000)) is OK
    device.send(PingReq())
    assert isinstance(device.receive(), PingResp)


def test_a_paused_client_is_not_taken_for_a_silent_one(shared_server: SharedServers) -> None:
    server = shared_server(settings={"quota.client_bytes_per_s": 10_000})
    device = Device(server.port, "d")
    assert device.connect(keep_alive_s=1).reason_code is OK
    device.publish("a", bytes(40_000))
    device.publish("a", b"", 1)
    assert device.next(PubAck).reason_code is OK


def test_the_clients_of_a_user_share(shared_server: SharedServers, passwords: Path) -> None:
    settings = {"auth.password_file": passwords, "quota.user_messages_per_s": 50, "quota.burst_ms": 100}
    server = of_a_user(shared_server(settings=settings))
    reader = connected(server, "reader", "bob", "b")
    reader.subscribe("#")
    devices = [connected(server, f"d{number}", "alice", "a") for number in range(5)]
    started_s = time.monotonic()
    for device in devices:
        for _ in range(20):
            device.publish("t")
    for _ in range(100):
        reader.next(Publish)
    assert time.monotonic() - started_s > 1.5


def test_connections_of_a_user(shared_server: SharedServers, passwords: Path) -> None:
    server = of_a_user(shared_server(settings={"auth.password_file": passwords, "quota.user_connections": 2}))
    first, _second = connected(server, "1", "alice", "a"), connected(server, "2", "alice", "a")
    assert Device(server.port, "3").connect("alice", "a").reason_code is EXCEEDED
    assert Device(server.port, "4", 4).connect("alice", "a").reason_code is ReasonCode.SERVER_UNAVAILABLE
    connected(server, "3", "bob", "b")
    again = connected(server, "1", "alice", "a")  # takes the place of the first
    assert first.closed_with() is ReasonCode.SESSION_TAKEN_OVER
    assert Device(server.port, "3").connect("alice", "a").reason_code is EXCEEDED
    again.close()
    while Device(server.port, "5").connect("alice", "a").reason_code is not OK:
        pass


def test_subscriptions_of_a_user(shared_server: SharedServers, passwords: Path) -> None:
    server = of_a_user(shared_server(settings={"auth.password_file": passwords, "quota.user_subscriptions": 3}))
    one, two = connected(server, "1", "alice", "a"), connected(server, "2", "alice", "a")
    assert [one.subscribe("a"), one.subscribe("b"), two.subscribe("a")] == [0, 0, 0]
    assert [one.subscribe("c"), two.subscribe("c")] == [EXCEEDED, EXCEEDED]
    assert one.subscribe("a", 1) == 1
    one.close()
    while two.subscribe("c") is EXCEEDED:
        pass
    assert connected(server, "3", "bob", "b").subscribe("x") == 0


def test_retained_messages_of_a_user(shared_server: SharedServers, passwords: Path) -> None:
    settings = {"auth.password_file": passwords, "quota.user_retained": 2}
    server = of_a_user(shared_server(admin="127.0.0.1:0", settings=settings))
    one, two = connected(server, "1", "alice", "a"), connected(server, "2", "alice", "a")
    assert one.published("a", b"1", retain=True) is OK
    assert two.published("b", b"1", retain=True) is OK
    assert one.published("c", b"1", retain=True) is EXCEEDED
    assert two.published("c", b"1") is OK
    assert two.published("a", b"2", retain=True) is OK
    assert two.published("a", b"", retain=True) is OK
    assert one.published("c", b"1", retain=True) is OK
    one.publish("d", b"1", retain=True)
    assert connected(server, "3", "bob", "b").published("x", b"1", retain=True) is OK
    assert one.published("c", b"2", retain=True) is OK
    found = figures(server)
    assert found['penstock_messages_refused_total{reason="quota"}'] == 2
    assert found['penstock_quota_refused_total{quota="retained"}'] == 2


def test_quota_of_bytes_that_wait_for_a_users_clients(penstock_server: ServerFactory, passwords: Path) -> None:
    """None reads. Those that are too many have to go, and find everything when they are back."""
    settings = {"auth.password_file": passwords, "quota.user_waiting_bytes": 4_000_000}
    settings |= {"gateway.write_buffer_bytes": 500_000}
    server = of_a_user(penstock_server(admin="127.0.0.1:0", settings=settings))
    writer = connected(server, "writer", "bob", "b")
    slow = [Device(server.port, f"slow{number}") for number in range(8)]
    for device in slow:
        answer = device.connect("alice", "a", clean_start=False, session_expiry_interval=100)
        assert answer.reason_code is OK
        assert device.subscribe("t", 1) == 1
    count = 0
    while not figures(server)['penstock_quota_refused_total{quota="waiting"}']:
        for _ in range(5):
            assert writer.published("t", b"%06d" % count + bytes(500_000)) is OK
            count += 1
        assert count < 500
    assert figures(server)["penstock_connections"] >= 2
    found: dict[int, bytes] = {}
    for device in slow:
        device.close()
    for device in slow:
        back = Device(server.port, device.client_id)
        assert back.connect("alice", "a", clean_start=False, session_expiry_interval=100).session_present
        while len(found) < count:
            message = back.next(Publish)
            found.setdefault(int(message.payload[:6]), message.payload)
            back.send(PubAck(message.packet_id or 0))
        assert sorted(found) == list(range(count))
        found.clear()
        back.close()


def test_less_may_wait_for_a_client(penstock_server: ServerFactory) -> None:
    """It gets no more until it takes that, and everything in the end."""
    server = penstock_server(settings={"quota.client_waiting_bytes": 10_000})
    slow, writer = connected(server, "slow"), connected(server, "writer")
    slow.subscribe("t", 1)
    for number in range(40):
        assert writer.published("t", b"%06d" % number + bytes(500_000)) is OK
    for number in range(40):
        message = slow.next(Publish)
        assert int(message.payload[:6]) == number
        slow.send(PubAck(message.packet_id or 0))


def test_published_is_delivered_and_refused(shared_server: SharedServers, tmp_path: Path) -> None:
    """The books close: every message sent is one that was taken in or one that was refused."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nallow = ["publish", "retain", "subscribe"]\ntopics = ["ok/#"]\n')
    settings = {"auth.permissions_file": rules, "quota.user_retained": 3, "quota.client_messages_per_s": 1_000}
    server = shared_server(admin="127.0.0.1:0", settings=settings)
    reader, device = connected(server, "reader"), connected(server, "device")
    reader.subscribe("ok/#", 1)
    for number in range(300):
        device.publish(("ok/%d" if number % 3 else "no/%d") % number, b"x", number % 3, retain=number % 5 == 0)
    device.publish("ok/last", b"last", 1)
    delivered = 0
    while reader.next(Publish).payload != b"last":
        delivered += 1
    found = figures(server)
    taken = sum(value for name, value in found.items() if name.startswith("penstock_messages_received_total"))
    refused = sum(value for name, value in found.items() if name.startswith("penstock_messages_refused_total"))
    assert taken + refused == 301
    assert taken == delivered + 1
    assert found['penstock_messages_refused_total{reason="not_authorized"}'] == 100
