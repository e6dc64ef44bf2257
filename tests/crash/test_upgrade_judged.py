"""Who is judged or has TLS when a gateway or a server is replaced: users stay, and are judged anew; TLS comes again."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import ConnAck, Connect, Disconnect, PubAck, Publish, QoS
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.mqtt_client import MqttConnection
from loadtest.chaos.part import Part
from tests.support.certificates import authority, vouched_for
from tests.support.mqtt_packet_client import write_passwords, write_secret
from tests.support.server_process import free_port
from tests.support.upgraded_gateway import UpgradedGateway
from tests.support.upgraded_store_server import UpgradedStoreServer

USERS = {"ann": "one", "bob": "two"}
RULES = """
[[rule]]
users = ["ann", "bob"]
allow = ["publish", "subscribe"]
topics = ["%u/#"]
"""


class JudgedPlace:
    """A gateway that knows users and has TLS at its second address; its store is another process, or in its own."""

    def __init__(self, folder: Path, is_apart: bool) -> None:
        self.passwords = write_passwords(folder / "passwords", USERS)
        self.rules = folder / "rules.toml"
        self.rules.write_text(RULES)
        self.ca = authority(folder, "authority")
        made = vouched_for(folder, "server", "DNS:localhost", self.ca)
        self.port, self.tls_port = free_port(), free_port()
        settings: dict[str, object] = {
            "auth.password_file": self.passwords,
            "auth.permissions_file": self.rules,
            "gateway.tls_certificate": made.certificate,
            "gateway.tls_key": made.key,
            "gateway.drain_timeout_s": 5,
        }
        listen = [f"mqtt://127.0.0.1:{self.port}", f"mqtts://127.0.0.1:{self.tls_port}"]
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "notify"))
        self.manager.settimeout(20)
        self._parts: list[Part] = []
        self.gateway: UpgradedGateway | UpgradedStoreServer
        if is_apart:
            url = f"tcp://127.0.0.1:{free_port()}"
            command = ["store", "--data", str(folder / "data"), "--listen", url]
            self._parts.append(Part(folder / "store.log", command, {"store.flush": "async"}, admin=False))
            self.gateway = UpgradedGateway(folder, url, listen, settings, str(folder / "notify"))
        else:
            self.gateway = UpgradedStoreServer(
                folder, settings | {"store.flush": "async"}, listen, str(folder / "notify")
            )
        self._parts.append(self.gateway)

    def told(self) -> bytes:
        """What the service manager was told next."""
        return self.manager.recv(99)

    def close(self) -> None:
        self.manager.close()
        for part in reversed(self._parts):
            part.kill()


@pytest.fixture(params=["gateway", "server"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[JudgedPlace]:
    place = JudgedPlace(tmp_path, request.param == "gateway")
    yield place
    place.close()


def login(user: str) -> Connect:
    return Connect(f"{user}-1", 5, True, 300, username=user, password=USERS[user].encode())


async def with_tls(place: JudgedPlace, user: str) -> MqttConnection:
    context = ssl.create_default_context(cafile=place.ca.certificate)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", place.tls_port, ssl=context, server_hostname="localhost"
    )
    connection = MqttConnection(reader, writer, 5)
    connection.send(Connect(f"{user}-tls", 5, True, 300, username=user, password=USERS[user].encode()))
    assert (await connection.receive(ConnAck)).reason_code == 0
    return connection


@pytest.mark.asyncio
async def test_users_stay_and_are_judged_anew_and_tls_comes_again(place: JudgedPlace) -> None:
    assert place.told() == b"READY=1"
    ann, _ = await MqttConnection.open(place.port, login("ann"))
    bob, _ = await MqttConnection.open(place.port, login("bob"))
    await ann.subscribe(1, "ann/#", QoS.AT_LEAST_ONCE)
    hidden = await with_tls(place, "ann")
    lines = place.passwords.read_text().splitlines()
    write_secret(place.passwords, "".join(f"{line}\n" for line in lines if not line.startswith("bob")))
    upgrading = asyncio.create_task(asyncio.to_thread(place.gateway.upgrade))
    assert (await hidden.receive(Disconnect)).reason_code is ReasonCode.USE_ANOTHER_SERVER
    hidden.cut()
    again = asyncio.create_task(with_tls(place, "ann"))  # which waits in the system's queue
    await upgrading
    assert {place.told(), place.told()} == {b"READY=1", b"MAINPID=%d" % place.gateway.pid}
    assert (await bob.receive(Disconnect)).reason_code is ReasonCode.NOT_AUTHORIZED
    bob.cut()
    ann.send(Publish("bob/secret", b"", QoS.AT_LEAST_ONCE, packet_id=2))
    assert (await ann.receive(PubAck)).reason_code is ReasonCode.NOT_AUTHORIZED
    other = await again
    await other.publish(Publish("ann/1", b"by TLS", QoS.AT_LEAST_ONCE, packet_id=3))
    assert (await ann.take()).payload == b"by TLS"
    ann.cut()
    other.cut()
