"""A file system without inodes, for real: publishes are refused and the server says why, then it goes on by itself."""

import asyncio
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, PubAck, Publish, QoS
from gateway.mqtt.properties import Properties
from loadtest.chaos.mqtt_client import MqttConnection
from tests.conftest import ServerFactory
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

pytestmark = pytest.mark.asyncio

INODES = 400
TOPIC = "plant/7/temp"
MOUNT = f'mount -t tmpfs -o size=256m,nr_inodes={INODES} penstock-test "$0" && exec "$@"'


def ready(server: PenstockServer) -> str:
    """What /readyz says."""
    url = re.findall(r"^admin (http://\S+)$", server.log_text(), re.MULTILINE)[-1]
    try:
        with urllib.request.urlopen(url + "/readyz", timeout=20) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"


def take_inodes(folder: Path) -> list[Path]:
    """Somebody else's files, as many as there can be."""
    made: list[Path] = []
    while True:
        path = folder / f"somebody-elses-{len(made)}"
        try:
            path.touch(exist_ok=False)
        except OSError:
            return made
        made.append(path)


async def publish(connection: MqttConnection, number: int) -> bool:
    """Whether it was taken."""
    payload = b"%06d " % number + b"x" * 3_000
    connection.send(Publish(TOPIC, payload, QoS.AT_LEAST_ONCE, packet_id=number % 60_000 + 1))
    return (await connection.receive(PubAck, 120)).reason_code < 0x80


async def test_no_inodes(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    server = penstock_server(flush="sync", settings=small, admin="127.0.0.1:0")
    server.terminate()
    who = () if os.geteuid() == 0 else ("--map-root-user",)
    server.prefix = ("unshare", "--mount", *who, "sh", "-c", MOUNT, str(server.data))
    server.restart()
    folder = Path(f"/proc/{server.process.pid}/root") / server.data.relative_to("/")
    assert os.statvfs(folder).f_files == INODES
    durable = Connect(client_id="archive", clean_start=False, properties=Properties(session_expiry_interval=3_600))
    connection, _ = await MqttConnection.open(server.port, durable)
    async with connection:
        await connection.subscribe(1, TOPIC, QoS.AT_LEAST_ONCE)
    acknowledged = []
    publisher, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with publisher:
        acknowledged += [number for number in range(20) if await publish(publisher, number)]
        assert len(acknowledged) == 20
        others = await asyncio.to_thread(take_inodes, folder)
        await asyncio.to_thread(wait_until, lambda: "no inodes left" in ready(server))
        number = 20
        while number in (20, *(each + 1 for each in acknowledged[-1:])):  # until the segment is full
            if await publish(publisher, number):
                acknowledged.append(number)
            number += 1
        assert server.process.poll() is None
        for path in others:
            path.unlink()
        await asyncio.to_thread(wait_until, lambda: ready(server).startswith("ready"))
        after = [each for each in range(number, number + 50) if await publish(publisher, each)]
        assert len(after) == 50
        acknowledged += after
    connection, _ = await MqttConnection.open(server.port, durable)
    async with connection:
        got = [int((await connection.take()).payload[:6]) for _ in acknowledged]
    assert got == acknowledged
