"""The index is damaged under a running server: it starts itself again, builds it from the log, and serves all of it."""

import asyncio
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gateway.mqtt.packets import PubAck, Publish, QoS
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from loadtest.errors import LoadTestError
from tests.conftest import ServerFactory
from tests.support.server_process import PenstockServer

MESSAGES = 40_000
AT_ONCE = 1_000
PATIENCE_S = 90


def flip_tables(index: Path) -> None:
    """In place, as a disk does it, whatever else reads or writes them."""
    for path in index.glob("*.sst"):
        with path.open("r+b") as file:
            data = file.read()
            for at in range(20, len(data) - 512, 256):  # what a table's end says was read long ago
                file.seek(at)
                file.write(bytes((data[at] ^ 1,)))


def page(server: PenstockServer, name: str) -> tuple[int, str]:
    url = re.findall(r"^admin (\S+)", server.log_text(), re.MULTILINE)[-1]
    try:
        with urllib.request.urlopen(f"{url}/{name}", timeout=10) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()
    except OSError as error:
        return 0, str(error)


def message(number: int) -> Publish:
    return Publish(f"heal/{number % 500}", b"%d" % number, QoS.AT_LEAST_ONCE, packet_id=number % AT_ONCE + 1)


async def taken(server: PenstockServer) -> set[int]:
    """What the subscriber gets, over as many connections as it takes; it is done once it has everything."""
    found: set[int] = set()
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while len(found) < MESSAGES and asyncio.get_running_loop().time() < deadline:
        try:
            connection, _ = await MqttConnection.open(server.port, persistent("s", receive_maximum=500), 5)
            async with connection:
                while len(found) < MESSAGES:
                    packets = [each for each in await connection.packets() if isinstance(each, Publish)]
                    found.update(int(publish.payload) for publish in packets)
                    connection.send(*(PubAck(publish.packet_id or 0) for publish in packets))
        except (OSError, EOFError, LoadTestError, TimeoutError):
            await asyncio.sleep(0.05)
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "gateways", [pytest.param("", marks=pytest.mark.nightly, id="serve"), pytest.param("1", id="apart")]
)
async def test_flipped_bytes_under_a_running_server(
    gateways: str, penstock_server: ServerFactory, small: dict[str, object]
) -> None:
    flags = {"gateways": gateways} if gateways else {}
    server = penstock_server(None, small, admin="127.0.0.1:0", **flags)
    connection, _ = await MqttConnection.open(server.port, persistent("s"))
    async with connection:
        await connection.subscribe(1, "heal/+", QoS.AT_LEAST_ONCE)
    connection, _ = await MqttConnection.open(server.port, persistent("p", receive_maximum=65_535))
    async with connection:
        for first in range(0, MESSAGES, AT_ONCE):
            connection.send(*map(message, range(first, first + AT_ONCE)))
            acknowledged = 0
            while acknowledged < AT_ONCE:
                acknowledged += len(await connection.packets())
    server.terminate()  # what is in memory goes to the tables
    server.restart()
    pid = server.process.pid
    flip_tables(server.data / "index")
    assert await taken(server) == set(range(MESSAGES)), server.log_text()[-5_000:]
    logged = server.log_text()
    assert "; starting again" in logged
    assert server.process.poll() is None, logged[-5_000:]
    assert server.process.pid == pid
    await asyncio.to_thread(wait_until_ready, server)


def wait_until_ready(server: PenstockServer) -> None:
    for _ in range(600):
        if page(server, "readyz") == (200, "ready"):
            return
    raise AssertionError(page(server, "readyz"))
