"""Wills and delayed messages that wait to be judged, where store, gateways or all of them are killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import Disconnect, PubAck, Publish, QoS, Will
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.cluster import Cluster
from tests.support.mqtt_packet_client import Device, until, write_passwords

ALL = '[[rule]]\nallow = ["publish", "retain", "subscribe"]\ntopics = ["#"]\n'
NO_LONGER = '[[rule]]\nusers = ["dev"]\ndeny = ["publish"]\ntopics = ["gone/#"]\n' + ALL
DELAY_S = 3  # longer than it takes to publish, and to kill who would judge
USERS = {"dev": "1", "ann": "2"}


class Site:
    def __init__(self, folder: Path, small: dict[str, object]) -> None:
        self.rules = folder / "rules.toml"
        self.rules.write_text(ALL)
        auth = {
            "auth.password_file": write_passwords(folder / "passwords", USERS),
            "auth.permissions_file": self.rules,
        }
        self.cluster = Cluster(folder, settings=small | auth | {"wire.lease_ms": 1_000}, wires=False)

    def watch(self, gateway: int) -> Device:
        watcher = Device(self.cluster.ports[gateway], "watcher")
        watcher.connect("ann", "2", session_expiry_interval=1_000, clean_start=False)
        return watcher

    def leave(self) -> list[Device]:
        """Two users' wills and delayed messages, at the first gateway; a watcher's session at the second."""
        assert self.watch(1).subscribe("#", 1) is ReasonCode.GRANTED_QOS_1
        devices = []
        for user, password in USERS.items():
            device = Device(self.cluster.ports[0], f"d-{user}")
            device.connect(user, password, will=Will(f"gone/{user}", b"will", QoS(1)), session_expiry_interval=60)
            for number in range(20):
                device.publish(f"$delayed/{DELAY_S}/gone/{user}/{number}", b"late", qos=1)
            assert {device.next(PubAck).reason_code for _ in range(20)} == {ReasonCode.SUCCESS}
            devices.append(device)
        return devices


@pytest.fixture
def site(tmp_path: Path, small: dict[str, object]) -> Iterator[Site]:
    site = Site(tmp_path, small)
    yield site
    site.cluster.close()


def left(user: str) -> list[str]:
    return sorted([f"gone/{user}", *(f"gone/{user}/{number}" for number in range(20))])


def seen(watcher: Device) -> list[str]:
    """All that comes before a message that is sent when nothing waits any more; the watcher leaves then."""
    watcher.publish("end", b"", qos=1)
    topics: list[str] = []
    while "end" not in topics:
        message = watcher.receive()
        assert isinstance(message, Publish | PubAck)
        if isinstance(message, Publish):
            watcher.send(PubAck(message.packet_id or 0))
            topics.append(message.topic_name)
    watcher.send(Disconnect())
    watcher.closed_with()
    return sorted(topics[:-1])


def waiting(cluster: Cluster) -> int:
    return cluster.store.metric("penstock_left_messages_waiting")


@pytest.mark.catalogue("G27")
@pytest.mark.parametrize(
    ("kills", "is_taken_away"),
    [
        ("gateway", False),
        ("both", True),
        pytest.param("gateway", True, marks=pytest.mark.nightly),
        pytest.param("both", False, marks=pytest.mark.nightly),
    ],
)
def test_left_messages_of_a_killed_gateway_are_judged_by_another(site: Site, kills: str, is_taken_away: bool) -> None:
    devices = site.leave()
    cluster = site.cluster
    if is_taken_away:
        site.rules.write_text(NO_LONGER)
    for part in (cluster.gateways[0], cluster.gateways[1], *[cluster.store] * (kills == "both")):
        part.kill()
    if kills == "both":
        cluster.store.start()
    until(lambda: waiting(cluster) == 42)  # no gateway is there to ask
    if is_taken_away:  # and once more, in the middle of it
        cluster.store.kill()
        cluster.store.start()
        until(lambda: waiting(cluster) == 42)
    cluster.gateways[1].start()
    until(lambda: waiting(cluster) == 0)
    expected = left("ann") if is_taken_away else sorted(left("ann") + left("dev"))
    assert seen(site.watch(1)) == expected
    assert seen(site.watch(1)) == []  # so the log has what was acknowledged before
    cluster.restart()
    assert seen(site.watch(1)) == []
    del devices
