"""What operators ask a server about itself and its topics, in one process and apart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gateway.mqtt.reason_codes import ReasonCode
from penstock import Client
from penstock.console.store.errors import OperatorRefused
from penstock.console.store.operator import OperatorConnection
from penstock.sdk.address import Address
from store.version import VERSION
from store.wire.operator_messages import (
    ClientDescribed,
    ClientShown,
    ClientsListed,
    DescribeClient,
    GatewayReport,
    GatewayShown,
    GatewaysListed,
    ListClients,
    ListGateways,
    ServerShown,
    ShowClient,
    ShowGateway,
    ShowServer,
    TopicReader,
    TopicReaders,
    TopicReadersFound,
)
from tests.conftest import ServerFactory
from tests.interop.test_tls import listener_settings, session, trusting
from tests.support.certificates import authority
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import PenstockServer

pytestmark = pytest.mark.topologies("one process", "shared port")

T = TypeVar("T")


def socket_of(server: PenstockServer) -> str:
    return f"unix://{server.data.absolute()}/console.sock"


def asked(server: PenstockServer, do: Callable[[OperatorConnection], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with asyncio.timeout(60), OperatorConnection(Address.parse(socket_of(server))) as operator:
            return await do(operator)

    return asyncio.run(run())


@pytest.fixture
def server(penstock_server: ServerFactory) -> PenstockServer:
    return penstock_server(flush="async", settings={"wire.client_token": "hidden-secret"})


def test_the_server_itself(server: PenstockServer) -> None:
    before_ms = time.time_ns() // 1_000_000
    device = Device(server.port, "d-1")
    assert device.connect().reason_code is ReasonCode.SUCCESS
    assert device.published("line/1", b"x") is ReasonCode.SUCCESS

    async def all_of_it(operator: OperatorConnection) -> list[ServerShown]:
        found = [await operator.ask(ShowServer(0), ServerShown)]
        while (after := found[-1].next) is not None:
            found.append(await operator.ask(ShowServer(after), ServerShown))
        return found

    first, *others = asked(server, all_of_it)
    assert (first.version, first.health, first.unready) == (VERSION, "", "")
    assert before_ms - 600_000 < first.started_ms <= before_ms
    settings = json.loads(first.settings)
    assert settings["store.flush"] == "async"
    assert settings["store.data"] == str(server.data)
    assert "hidden-secret" not in first.settings
    assert not any(each.settings for each in others)
    figures = [figure for each in (first, *others) for figure in each.figures]
    values = {name: value for name, labels, value in figures if not labels}
    assert values["penstock_log_bytes"] > 0
    assert values["process_resident_memory_bytes"] > 1 << 20
    flushes = [
        (labels["le"], value) for name, labels, value in figures if name == "penstock_delayed_late_seconds_bucket"
    ]
    assert [value for _, value in flushes] == sorted(value for _, value in flushes)
    assert flushes[-1][0] == "+Inf"
    assert len({(name, *sorted(labels.items())) for name, labels, _ in figures}) == len(figures)


def test_readers_of_a_topic_are_listed(server: PenstockServer) -> None:
    filters = {"d-1": "line/+", "d-2": "#", "d-3": "line/1", "d-4": "other/#", "d-5": "$share/g/line/#"}
    devices = {client_id: Device(server.port, client_id) for client_id in filters}
    for client_id, device in devices.items():
        assert device.connect(session_expiry_interval=300, clean_start=False).reason_code is ReasonCode.SUCCESS
        device.subscribe(filters[client_id], 1)
    devices["d-3"].close()

    async def readers(operator: OperatorConnection) -> TopicReadersFound:
        async with Client(socket_of(server), timeout_s=10) as sdk, sdk.subscribe("line/1", group="workers") as members:
            waiting = asyncio.ensure_future(anext(aiter(members)))
            await sdk.publish("line/1", b"x")
            await waiting
            while True:
                found = await operator.ask(TopicReaders("line/1", 0), TopicReadersFound)
                if TopicReader("d-3", "line/1", 1, False) in found.sessions:
                    return found
                await asyncio.sleep(0.05)

    found = asked(server, readers)
    assert {(each.client_id, each.topic_filter, each.online) for each in found.sessions} == {
        *{("d-1", "line/+", True), ("d-2", "#", True), ("d-3", "line/1", False), ("d-5", "$share/g/line/#", True)}
    }
    assert sorted(found.groups) == [("g", "line/#"), ("workers", "line/1")]
    assert found.next is None
    assert asked(server, lambda operator: operator.ask(TopicReaders("$SYS/x", 0), TopicReadersFound)).sessions == []


@pytest.mark.topologies("one process")
def test_thousands_of_sessions_are_listed_by_several_at_once(server: PenstockServer) -> None:
    for number in range(4_100):
        device = Device(server.port, f"s-{number}")
        device.connect(session_expiry_interval=300, clean_start=False)
        if number % 1_000 == 0:
            device.subscribe("many/+", 1)
        device.close()

    async def listed(operator: OperatorConnection) -> set[str]:
        found: set[str] = set()
        after: int | None = 0
        while after is not None:
            answer = await operator.ask(ListClients("", False, after), ClientsListed)
            found.update(each.client_id for each in answer.clients)
            after = answer.next
        return found

    async def readers(operator: OperatorConnection) -> set[str]:
        found: set[str] = set()
        after: int | None = 0
        while after is not None:
            answer = await operator.ask(TopicReaders("many/1", after), TopicReadersFound)
            found.update(each.client_id for each in answer.sessions)
            after = answer.next
        return found

    async def at_once(operator: OperatorConnection) -> list[set[str]]:
        found = await asyncio.gather(listed(operator), readers(operator), listed(operator), readers(operator))
        with pytest.raises(OperatorRefused, match="begin it anew"):
            await operator.ask(TopicReaders("many/1", 1 << 50), TopicReadersFound)
        return list(found)

    some = {f"s-{number}" for number in range(0, 4_100, 1_000)}
    everybody = {f"s-{number}" for number in range(4_100)}
    assert asked(server, at_once) == [everybody, some, everybody, some]


@pytest.mark.topologies("one process")
def test_long_filters_of_some_hide_nobody(server: PenstockServer) -> None:
    """200 filters of 60 KB made answers that no frame has room for."""
    for name in ("long-1", "long-2"):
        device = Device(server.port, name)
        device.connect(session_expiry_interval=300, clean_start=False)
        for number in range(100):
            device.subscribe(f"long/{'+/' * number}{'x' * 60_000}/#", 1)
        device.close()
    other = Device(server.port, "other")
    other.connect(session_expiry_interval=300, clean_start=False)
    other.subscribe("long/#", 1)
    topic = f"long/a/a/a/{'x' * 60_000}"

    async def everything(operator: OperatorConnection) -> tuple[list[str], int, ClientShown]:
        readers: list[str] = []
        after: int | None = 0
        while after is not None:
            answer = await operator.ask(TopicReaders(topic, after), TopicReadersFound)
            readers += [each.client_id for each in answer.sessions]
            after = answer.next
        listed = await operator.ask(ListClients("", False, 0), ClientsListed)
        return readers, len(listed.clients), await operator.ask(ShowClient("long-1"), ClientShown)

    readers, clients, shown = asked(server, everything)
    assert sorted(readers) == ["long-1", "long-2", "other"]
    assert clients == 3
    assert shown.client is not None
    assert shown.client.subscriptions == 100
    assert 1 <= len(shown.subscriptions) < 100
    other.close()


def test_a_client_is_described_by_its_gateway(server: PenstockServer) -> None:
    device, other = Device(server.port, "d-1"), Device(server.port, "d-2", version=4)
    assert device.connect(keep_alive_s=40, session_expiry_interval=0).reason_code is ReasonCode.SUCCESS
    assert other.connect().reason_code == 0
    device.subscribe("line/+", 2)
    device.subscribe("$share/g/line/#", 1)

    async def described(operator: OperatorConnection) -> list[ClientDescribed]:
        return [await operator.ask(DescribeClient(name), ClientDescribed) for name in ("d-1", "d-2", "nobody")]

    first, second, third = (each.details for each in asked(server, described))
    assert first is not None
    assert second is not None
    assert (first.version, first.keep_alive_s, first.durable, first.tls) == (5, 40, False, False)
    assert sorted(first.subscriptions) == [("$share/g/line/#", None), ("line/+", 2)]
    assert (first.in_flight, first.backlog, first.lag) == (0, 0, 0)
    assert first.opened_ms > 1_700_000_000_000
    assert (second.version, third) == (4, None)


async def reports_of(operator: OperatorConnection) -> dict[str, GatewayReport]:
    """By name, of those that answer."""
    listed = await operator.ask(ListGateways(), GatewaysListed)
    shown = {name: await operator.ask(ShowGateway(name, 0), GatewayShown) for name in listed.gateways}
    return {name: each.report for name, each in shown.items() if each.report is not None}


@pytest.mark.topologies("one process", "shared port", "two gateways")
def test_each_gateway_tells_its_figures(penstock_server: ServerFactory) -> None:
    server = penstock_server(flush="async", settings={"wire.client_token": "", "wire.operator_token": ""})
    devices = [Device(server.port, f"d-{number}") for number in range(8)]
    for device in devices:
        assert device.connect().reason_code is ReasonCode.SUCCESS
        assert device.published("line/1", b"x") is ReasonCode.SUCCESS
    found = asked(server, reports_of)
    gateways = server.gateways()
    apart = len(gateways) > 1 or gateways[0].pid != server.process.pid
    assert len(found) == (len(gateways) if apart else 0)
    for report in found.values():
        assert (report.version, report.unready, report.next) == (VERSION, "", None)
        assert 1_700_000_000_000 < report.started_ms <= time.time_ns() // 1_000_000
    samples = [(name, value) for report in found.values() for name, _, value in report.figures]
    for name, total in (("penstock_connections", 8), ("penstock_messages_received_total", 8)):
        assert sum(value for each, value in samples if each == name) == (total if apart else 0)
    assert asked(server, lambda operator: operator.ask(ShowGateway("nobody", 0), GatewayShown)).report is None


@pytest.mark.topologies("one process")
def test_a_client_with_tls(penstock_server: ServerFactory, tmp_path: Path) -> None:
    ca = authority(tmp_path, "authority")
    server = penstock_server(flush="async", settings=listener_settings(tmp_path, ca))
    with session(server, trusting(ca), "d-1"):
        answer = asked(server, lambda operator: operator.ask(DescribeClient("d-1"), ClientDescribed))
    assert answer.details is not None
    assert answer.details.tls
