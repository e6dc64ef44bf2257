"""Flows as a process: all those of one file, with one connection to the store."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from notify.links.address import StoreAddress
from penstock.config.credentials import tls_of_gateway, token_of_client
from penstock.config.secret_files import read_file
from penstock.config.settings import Settings
from penstock.errors import PenstockError, UsageError
from penstock.flows.counts import FlowCounts
from penstock.flows.definition import Flow, read_flows
from penstock.flows.errors import SinkLost
from penstock.flows.gate import SinkGate
from penstock.flows.runner import FlowRunner
from penstock.flows.sink import sink_of
from penstock.sdk.client import Client
from penstock.sdk.errors import CannotConnect, ClientError
from penstock.servers.logs import announce
from penstock.servers.process import Stop, run
from store.version import VERSION

log = logging.getLogger("penstock.flows")

PAUSE_S = 1.0  # before the store is tried again
TOLD_EVERY_S = 60.0


def serve(settings: Settings, file: Path) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code. Raises UsageError before anything starts."""
    flows = read_flows(file)
    address = store_address(settings)
    client = client_of(settings, address)
    source = source_of(address)
    with in_file(file):
        runners = [runner_of(flow, client, source) for flow in flows]
    return run(settings, lambda: _serve(client, runners, file, address.url))


class Runner(Protocol):
    """A flow at work."""

    flow: Flow
    counts: FlowCounts
    gate: SinkGate

    async def run(self) -> None:
        """Until stop(). Raises ClientError if a store refuses what it needs."""

    def stop(self) -> None: ...


def runner_of(flow: Flow, client: Client, source: str) -> Runner:
    """`client`: of the flows' store; `source`: of CloudEvents. Raises FlowError."""
    if flow.is_from_kafka:
        from penstock.flows.sources.kafka import KafkaRunner

        return KafkaRunner(flow, client)
    if flow.is_from_amqp:
        from penstock.flows.sources.amqp.runner import AmqpRunner

        return AmqpRunner(flow, client)
    if flow.is_from_mqtt:
        from penstock.flows.sources.mqtt.runner import MqttRunner

        return MqttRunner(flow, client)
    return FlowRunner(flow, client, sink_of(flow, client, source))


def store_address(settings: Settings) -> StoreAddress:
    """Raises UsageError."""
    if settings.gateway.store is None:
        raise UsageError("no store to connect to; give its address with --store tcp://HOST:PORT")
    return StoreAddress.parse(settings.gateway.store)


def client_of(settings: Settings, address: StoreAddress) -> Client:
    """Raises PenstockError."""
    trusted = tls_of_gateway(address, settings.gateway)
    password = ""
    if settings.flows.password_file is not None:
        password = read_file(settings.flows.password_file, "flows.password_file").decode().strip()
    url = address.url.replace("tcp://", "penstock://").replace("tls://", "penstocks://")
    return Client(
        url,
        token="" if address.path else token_of_client(settings.wire),
        user=settings.flows.user,
        password=password,
        tls=trusted,
    )


def source_of(address: StoreAddress) -> str:
    """How CloudEvents name the store."""
    return f"penstock://{socket.gethostname() if address.path else address.url.partition('://')[2]}"


@contextmanager
def in_file(file: Path) -> Iterator[None]:
    """Errors of flows say in which file they are."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


async def _serve(client: Client, runners: Sequence[Runner], file: Path, store: str) -> None:
    stop = Stop()
    log.info("penstock %s flows starting, store=%s, flows=%s", VERSION, store, _names(runners))
    connecting = asyncio.create_task(_connect(client))
    while not connecting.done() and not await stop.or_tick():
        pass
    if not connecting.done():
        connecting.cancel()
        return
    connecting.result()
    running = {asyncio.create_task(_run(runner)): runner for runner in runners}
    announce("flows", str(file))
    told_s = asyncio.get_running_loop().time()
    while any(not task.done() for task in running) and not await stop.or_tick():
        now_s = asyncio.get_running_loop().time()
        if now_s - told_s > TOLD_EVERY_S:
            told_s = now_s
            for runner in runners:
                log.info("flow %s: %s", runner.flow.name, runner.counts)
    for runner in runners:
        runner.stop()
    await asyncio.gather(*running)
    await client.close()
    for runner in runners:
        log.info("flow %s: %s", runner.flow.name, runner.counts)
    if all(task.result() for task in running):
        raise PenstockError(f"{file}: no flow can run; the log says why")
    log.info("stopped")


async def _connect(client: Client) -> None:
    """Until the store is there. Raises ClientError if it refuses this client."""
    said = ""
    while True:
        try:
            await client.connect()
            return
        except CannotConnect as error:
            if str(error) != said:
                said = str(error)
                log.warning("%s; it is tried again", error)
            await asyncio.sleep(PAUSE_S)


async def _run(runner: Runner) -> str:
    """Why a flow cannot run; empty: it was stopped."""
    try:
        await runner.run()
    except (ClientError, SinkLost) as error:
        log.error("flow %s: %s", runner.flow.name, error)
        return str(error)
    return ""


def _names(runners: Sequence[Runner]) -> str:
    return ", ".join(runner.flow.name for runner in runners)
