"""Users of a cluster have the addresses of its stores: each finds the one that leads, and goes on with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import PingReq, PingResp, PubAck, Publish
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.part import Part
from notify.links.address import StoreAddress
from penstock import Client
from penstock.console.store.operator import OperatorConnection
from penstock.sdk.address import Address
from penstock.spark.connection import StoreAccess
from penstock.spark.errors import StoreUnreachable
from penstock.store_client import StoreClient
from store.wire.messages import Role
from store.wire.operator_messages import ServerShown, ShowServer
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import free_port, plain_port, ready_urls
from tests.support.standby_store import StandbyStore
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

CLIENT, OPERATOR, GATEWAY = "a token of clients", "a token of operators", "a token of gateways"
TOKENS = {"wire.client_token": CLIENT, "wire.operator_token": OPERATOR, "wire.gateway_token": GATEWAY}


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[StoreProcess]:
    leader = StoreProcess(tmp_path, settings=TOKENS)
    yield leader
    leader.close()


@pytest.fixture
def standby() -> Iterator[StandbyStore]:
    with StandbyStore() as standby:
        yield standby


def place_of(store: StoreProcess) -> str:
    return store.url.removeprefix("tcp://")


@pytest.fixture(
    params=["the first one is dead", "the first one knows nothing", "the first one says who leads", "its name"]
)
def places(request: pytest.FixtureRequest, leader: StoreProcess, standby: StandbyStore) -> str:
    """HOST:PORT of stores as a user has them; the store that leads is found behind another one."""
    match request.param:
        case "the first one is dead":
            return f"127.0.0.1:{free_port()},{place_of(leader)}"
        case "the first one knows nothing":
            return f"{standby.place},{place_of(leader)}"
        case "its name":
            standby.leader = place_of(leader).replace("127.0.0.1", "localhost")
        case _:
            standby.leader = place_of(leader)
    return standby.place


def test_clients_find_the_leader(places: str) -> None:
    async def ask() -> None:
        async with Client(f"penstock://{places}", token=CLIENT, timeout_s=10) as client:
            await client.publish("line/1", b"on")
        async with OperatorConnection(StoreAddress.parse(f"tcp://{places}"), OPERATOR) as operator:
            await operator.ask(ShowServer(0), ServerShown)

    asyncio.run(ask())
    with StoreClient(StoreAddress.parse(f"tcp://{places}"), OPERATOR, None, Role.OPERATOR) as command:
        command.call(ShowServer(0), ServerShown)
    with StoreAccess(Address.parse(f"penstock://{places}"), CLIENT).connect() as spark:
        assert spark.welcome.log_end > 0


def test_devices_stay_connected_while_a_gateway_finds_the_next_leader(
    tmp_path: Path, leader: StoreProcess, standby: StandbyStore
) -> None:
    """The second store has the log of the first one, which is killed."""
    second = f"127.0.0.1:{free_port()}"
    standby.leader = place_of(leader)
    command = ["gateway", "--store", f"tcp://{standby.place},{second}", "--listen", "mqtt://127.0.0.1:0"]
    gateway = Part(tmp_path / "gateway.log", command, {"gateway.store_token": GATEWAY}, admin=False)
    port = plain_port(ready_urls(gateway.log_text()))
    publisher, lasting, clean, watching = (Device(port, name) for name in ("p", "lasting", "clean", "watching"))
    try:
        for each in (publisher, clean, watching):
            each.connect()
        lasting.connect(clean_start=False, properties=Properties(session_expiry_interval=60))
        assert lasting.subscribe("line/+", qos=1) == ReasonCode.GRANTED_QOS_1
        assert clean.subscribe("line/+", qos=1) == ReasonCode.GRANTED_QOS_1
        assert watching.subscribe("#") == ReasonCode.GRANTED_QOS_0
        assert publisher.published("line/1", b"before") == ReasonCode.SUCCESS
        leader.kill()
        publisher.publish("line/1", b"meanwhile", qos=1)
        standby.leader = ""
        next_leader = StoreProcess(tmp_path, f"tcp://{second}", TOKENS)
        try:
            assert publisher.next(PubAck).reason_code == ReasonCode.SUCCESS
            publisher.publish("line/2", b"after", qos=1)
            for subscriber in (lasting, clean):
                packets = [subscriber.next(Publish) for _ in range(3)]
                assert [each.payload for each in packets] == [b"before", b"meanwhile", b"after"]
                assert not any(each.dup for each in packets)
            watching.send(PingReq())
            while not isinstance(packet := watching.receive(), PingResp):
                assert isinstance(packet, Publish)
        finally:
            next_leader.close()
    finally:
        for each in (publisher, lasting, clean, watching):
            each.close()
        gateway.kill()


def test_while_no_store_leads_a_client_waits_and_spark_is_patient(standby: StandbyStore, leader: StoreProcess) -> None:
    async def until_led() -> None:
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(published())
            await asyncio.to_thread(wait_until, lambda: standby.asked >= 3)
            assert not publishing.done()
            standby.leader = place_of(leader)

    async def published() -> None:
        async with Client(f"penstock://{standby.place}", token=CLIENT, timeout_s=20) as client:
            await client.publish("line/1", b"on")

    access = StoreAccess(Address.parse(f"penstock://{standby.place}"), patience_s=0.0)
    with pytest.raises(StoreUnreachable, match="another store leads the cluster"):
        access.link("spark-1")
    asyncio.run(until_led())
