"""The gateways of one server are replaced one after the other; its clients notice nothing of it, and its supervisor
follows them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from gateway.mqtt.packets import Publish, QoS
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from tests.support.moved_clients import NumbersClient, finish_all, start_all
from tests.support.server_process import free_port
from tests.support.upgraded_gateway import PATIENCE_S
from tests.support.upgraded_server import UpgradedServer

SETTINGS: dict[str, object] = {
    "gateway.sys_interval_s": 0,
    "gateway.connect_timeout_s": 300,
    "store.flush": "async",
}


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[UpgradedServer]:
    server = UpgradedServer(tmp_path, port, 2, SETTINGS)
    yield server
    server.kill()


async def progress(clients: list[NumbersClient]) -> None:
    """Wait until each client has had some more."""
    before = [len(each.received) for each in clients]
    async with asyncio.timeout(PATIENCE_S):
        for each, had in zip(clients, before, strict=True):
            await each.has_received(had + 3)


def kill_before_its_word(server: UpgradedServer, old: dict[int, str], deaf: socket.socket) -> None:
    """The next process has taken everything, and connects to its store."""
    pid = server.next_process(old)
    deaf.settimeout(PATIENCE_S)
    connected, _ = deaf.accept()
    os.kill(pid, signal.SIGKILL)
    connected.close()


def run_upgrade(server: UpgradedServer) -> list[str]:
    command = [sys.executable, "-P", "-m", "penstock", "upgrade", str(server.process.pid)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.asyncio
async def test_all_gateways_of_a_server_are_replaced(server: UpgradedServer, port: int) -> None:
    """Clients lose and double nothing, also when the next process does not start, or dies before it serves."""
    clients = [NumbersClient(each) for each in range(40)]
    await start_all(clients, port)
    old, config = server.gateways, server.config
    given = config.read_text()

    os.kill(min(old), signal.SIGUSR2)
    await asyncio.to_thread(server.wait_for, lambda: server.said("has a supervisor; send the signal to that"))
    config.write_text("[gateway]\nunheard_of = 1\n")
    assert "is gone" in await asyncio.to_thread(server.fails)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        (store,) = (line for line in given.splitlines() if line.startswith("store = "))
        config.write_text(given.replace(store, f'store = "tcp://127.0.0.1:{deaf.getsockname()[1]}"'))
        assert "is gone" in await asyncio.to_thread(server.fails, partial(kill_before_its_word, server, old, deaf))
    await progress(clients)
    assert server.gateways == old
    config.write_text(given)
    said = await asyncio.to_thread(run_upgrade, server)
    assert said == [f"process {pid} has handed over" for pid in sorted(old)]
    await progress(clients)
    await asyncio.to_thread(server.replace_store)
    await progress(clients)
    await finish_all(clients, PATIENCE_S)
    await asyncio.to_thread(server.wait_for, lambda: server.said("all 2 gateways were replaced"))
    new = server.gateways
    assert sorted(new.values()) == sorted(old.values())
    assert not new.keys() & old.keys()
    assert server.said(r"(\S+) ended with \S+ starting it again") == ["store"]
    await asyncio.to_thread(server.terminate)


def end_while_one_starts(server: UpgradedServer) -> None:
    """Nobody is left of a server that ends while it replaces a gateway."""
    old = server.gateways
    server.ask()
    following = psutil.Process(server.next_process(old))
    server.terminate()
    assert not following.is_running()


@pytest.mark.asyncio
async def test_a_gateway_that_dies_once_it_serves_is_started_again(server: UpgradedServer, port: int) -> None:
    """Its clients reconnect, and nothing is lost; the other gateway is replaced as well."""
    clients = [(await MqttConnection.open(port, persistent(f"device-{number}")))[0] for number in range(4)]
    for number, client in enumerate(clients):
        await client.subscribe(1, f"to/{number}", QoS.AT_LEAST_ONCE)
        await client.publish(Publish(f"to/{number}", b"once", QoS.AT_LEAST_ONCE, packet_id=8))
    old = server.gateways
    server.ask()
    # Once the other gateway is being replaced, the parent knows that this one was.
    await asyncio.to_thread(server.wait_for, lambda: len(server.said("ready to take over")) > 1)
    first = int(server.said(r"process (\d+) serves")[0])
    os.kill(first, signal.SIGKILL)

    def is_whole() -> bool:
        gateways = server.gateways
        return len(gateways) == 2 and not gateways.keys() & {first, *old}

    await asyncio.to_thread(server.wait_for, is_whole)
    await asyncio.to_thread(server.wait_for, lambda: server.said("starting it again"))
    for number, client in enumerate(clients):
        client.cut()
        again, connack = await MqttConnection.open(port, persistent(f"device-{number}"))
        async with again:
            assert connack.session_present
            assert (await again.take()).payload == b"once"
    await asyncio.to_thread(end_while_one_starts, server)
