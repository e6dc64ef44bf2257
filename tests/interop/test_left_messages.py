"""Wills and delayed messages are judged when they are sent, with real servers and sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.mqtt.packets import Publish, QoS, Will
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import IN_ALL_TOPOLOGIES, ServerFactory
from tests.support.audit_lines import audit_lines, wait_for_audit
from tests.support.mqtt_packet_client import Device, reload, until, write_passwords
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

ALL = '[[rule]]\nallow = ["publish", "retain", "subscribe"]\ntopics = ["#"]\n'
NO_LONGER = '[[rule]]\nusers = ["dev"]\ndeny = ["publish"]\ntopics = ["gone/#"]\n' + ALL
USERS = {"dev": "1", "ann": "2"}


class Site:
    """A server with users and rules, a watcher of everything, and a device of user dev that left messages behind."""

    def __init__(self, start: ServerFactory, folder: Path) -> None:
        self.folder = folder
        self.rules, self.passwords = folder / "rules.toml", folder / "passwords"
        self.rules.write_text(ALL)
        write_passwords(self.passwords, USERS)
        settings = {"auth.password_file": self.passwords, "auth.permissions_file": self.rules}
        self.server: PenstockServer = start(flush="async", settings=settings)
        self.watcher = Device(self.server.port, "watcher")
        self.watcher.connect("ann", "2", session_expiry_interval=1_000, clean_start=False)
        self.watcher.subscribe("#", 1)

    def device(self, client_id: str, user: str, will_topic: str, delay_s: int = 0) -> Device:
        device = Device(self.server.port, client_id)
        will = Will(
            will_topic, f"will of {user}".encode(), QoS(1), True, Properties(will_delay_interval=delay_s or None)
        )
        answer = device.connect(user, USERS[user], will=will, session_expiry_interval=60)
        assert answer.reason_code is ReasonCode.SUCCESS
        return device

    def leave(self, delay_s: int) -> list[Device]:
        """The same by two users, of whom one loses the right; a delayed message of each and a retained will."""
        devices = [self.device(f"d-{user}", user, f"gone/{user}", delay_s) for user in USERS]
        for device, user in zip(devices, USERS, strict=True):
            assert device.published(f"$delayed/2/gone/{user}/late", b"late", retain=True) is ReasonCode.SUCCESS
            assert device.published(f"$delayed/2/open/{user}", b"late") is ReasonCode.SUCCESS
        return devices

    def seen(self, number: int) -> set[str]:
        return {self.watcher.next(Publish).topic_name for _ in range(number)}

    def wait_for_drops(self, *topics: str) -> None:
        """What dev left for these is not sent: there is a line in the log, and in the audit log of a gateway."""
        for topic in topics:
            self._wait_for_line(f"client d-dev: its will or delayed message to {topic} is not sent")
            if audit_lines(self.server, "connected"):  # the gateways have one
                line = wait_for_audit(self.server, "denied", reason=f"send a will or delayed message to {topic}")
                assert (line["user"], line["client_id"]) == ("dev", "d-dev")

    def _wait_for_line(self, text: str) -> None:
        until(lambda: text in self.server.log_text())

    def retained(self) -> set[str]:
        device = Device(self.server.port, "late-comer")
        device.connect("ann", "2")
        device.subscribe("#", 1)
        device.publish("end", b"")
        seen = set()
        while (topic := device.next(Publish).topic_name) != "end":
            seen.add(topic)
        device.close()
        return seen


@pytest.fixture
def site(penstock_server: ServerFactory, tmp_path: Path) -> Site:
    return Site(penstock_server, tmp_path)


RIGHT_STANDS = {"gone/ann", "gone/ann/late", "open/ann"}


@pytest.mark.catalogue("G27")
@pytest.mark.parametrize("delay_s", [0, 1])
def test_a_right_that_was_taken_away_after_a_message_was_left(site: Site, delay_s: int) -> None:
    devices = site.leave(delay_s)
    site.rules.write_text(NO_LONGER)
    reload(site.server)
    for device in devices:
        device.close()
    assert site.seen(4) == RIGHT_STANDS | {"open/dev"}
    site.wait_for_drops("gone/dev", "gone/dev/late")
    assert site.retained() == {"gone/ann", "gone/ann/late"}


def test_a_user_who_was_deleted(site: Site) -> None:
    devices = site.leave(1)  # they stay connected; the wills are judged once all gateways have read the files
    anns = [line for line in site.passwords.read_text().splitlines(keepends=True) if line.startswith("ann:")]
    site.passwords.write_text("".join(anns))
    reload(site.server)  # which ends the connection of dev
    Device(site.server.port, "d-ann").connect("ann", "2")  # and this that of ann's device
    assert site.seen(3) == RIGHT_STANDS
    site.wait_for_drops("gone/dev", "gone/dev/late", "open/dev")
    del devices


def test_the_right_is_gone_when_the_servers_are_back_from_a_kill(site: Site) -> None:
    """What was acknowledged is sent or dropped by the rules that count then; the wills as well."""
    devices = site.leave(0)  # they stay connected
    site.server.kill()
    site.rules.write_text(NO_LONGER)
    site.server.restart()
    again = Device(site.server.port, "watcher")
    again.connect("ann", "2", session_expiry_interval=1_000, clean_start=False)
    seen = [again.next(Publish).topic_name for _ in range(4)]
    assert set(seen) == RIGHT_STANDS | {"open/dev"}
    site.wait_for_drops("gone/dev", "gone/dev/late")
    assert site.retained() == {"gone/ann", "gone/ann/late"}
    del devices
