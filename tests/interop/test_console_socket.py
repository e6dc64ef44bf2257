"""The private socket of a server in its data folder: operators and judged clients, without a token."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.packets import Publish
from gateway.mqtt.reason_codes import ReasonCode
from penstock import Client
from penstock.console.store.errors import OperatorRefused, StoreUnavailable, TooManyRequests
from penstock.console.store.operator import MOST_REQUESTS, OperatorConnection
from penstock.sdk.address import Address
from penstock.sdk.errors import CannotConnect, NotPermitted
from store.errors import HandshakeRefused
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.wire import messages as wire
from store.wire.base import PRODUCER
from store.wire.messages import Role
from store.wire.operator_messages import AddBan, ClientsListed, ListClients, OperatorDone
from tests.conftest import ServerFactory
from tests.support.mqtt_packet_client import Device, reload, until, write_passwords
from tests.support.server_process import PenstockServer
from tests.support.store_protocol_client import WirePeer

pytestmark = pytest.mark.topologies("one process", "shared port")

RULES = """
[[rule]]
users = ["ops"]
allow = ["publish", "subscribe", "replay", "admin"]
topics = ["#"]

[[rule]]
users = ["ann"]
allow = ["publish", "subscribe", "replay"]
topics = ["line/#"]
"""


def url(server: PenstockServer) -> str:
    return f"unix://{server.data.absolute()}/console.sock"


def client(server: PenstockServer, **options: Any) -> Client:
    return Client(url(server), timeout_s=10, **options)


def operator(server: PenstockServer, timeout_s: float = 10.0) -> OperatorConnection:
    return OperatorConnection(Address.parse(url(server)), timeout_s=timeout_s)


@pytest.fixture
def server(penstock_server: ServerFactory) -> PenstockServer:
    return penstock_server(flush="async")


def test_clients_and_operators_use_the_private_socket(server: PenstockServer) -> None:
    assert (server.data / "console.sock").stat().st_mode & 0o777 == 0o600
    device = Device(server.port, "d-1")
    assert device.connect().reason_code is ReasonCode.SUCCESS
    device.subscribe("line/1", 1)
    asyncio.run(_used(server, device))
    server.terminate()
    assert not (server.data / "console.sock").exists()


async def _used(server: PenstockServer, device: Device) -> None:
    async with asyncio.timeout(60), client(server) as sdk, operator(server) as ops:
        assert (await sdk.rights()).is_admin
        receipt = await sdk.publish("line/1", b"from the console", key="k")
        assert (await asyncio.to_thread(device.next, Publish)).payload == b"from the console"
        await asyncio.to_thread(device.published, "line/2", b"from a device")
        assert [each.payload async for each in sdk.read("line/#")] == [b"from the console", b"from a device"]
        assert (await sdk.get(receipt.message_id)).payload == b"from the console"
        async with sdk.subscribe("line/#", group="workers") as members:
            for expected in (b"from the console", b"from a device"):
                message = await anext(aiter(members))
                assert message.payload == expected
                await message.ack()
        large = [(f"many/{number}", b"x" * 3_000) for number in range(800)]  # it is applied in steps
        assert len(await sdk.publish_many(large)) == 800
        listed = await ops.ask(ListClients("", True, 0), ClientsListed)
        assert [each.client_id for each in listed.clients] == ["d-1"]
        assert (await ops.ask(AddBan("client_id", "bad", 0, "abuse", "ops"), OperatorDone)).found
        with pytest.raises(OperatorRefused) as caught:
            await ops.ask(AddBan("address", "nowhere", 0, "abuse", "ops"), OperatorDone)
        assert caught.value.code == "bad_request"


def test_a_gateway_is_not_let_in(server: PenstockServer) -> None:
    with pytest.raises(HandshakeRefused, match="nobody is let in here as 'gateway'"):
        WirePeer(url(server), "gw", Role.GATEWAY)


def test_clients_are_judged(penstock_server: ServerFactory, tmp_path: Path) -> None:
    passwords, rules = tmp_path / "passwords", tmp_path / "rules.toml"
    write_passwords(passwords, {"ann": "1", "ops": "2"})
    rules.write_text(RULES)
    server = penstock_server(
        flush="async", settings={"auth.password_file": passwords, "auth.permissions_file": rules, "wire.token": "t"}
    )
    asyncio.run(_judged(server, rules))


async def _judged(server: PenstockServer, rules: Path) -> None:
    for user, password in (("ann", "2"), ("", "")):
        with pytest.raises(CannotConnect, match=r"\(user\)"):
            async with client(server, user=user, password=password):
                pass
    async with asyncio.timeout(60), client(server, user="ann", password="1") as ann:
        assert not (await ann.rights()).is_admin
        await ann.publish("line/1", b"x")
        with pytest.raises(NotPermitted):
            await ann.publish("other", b"x")
        await asyncio.to_thread(rules.write_text, RULES.replace("line/#", "other"))
        await asyncio.to_thread(reload, server)
        await until_permitted(ann, "other")
        await ann.publish("other", b"x")
        with pytest.raises(NotPermitted):
            await ann.publish("line/1", b"x")


async def until_permitted(user: Client, topic: str) -> None:
    """Each process reads its files again by itself."""
    while not (await user.permitted("publish", [topic]))[0]:  # noqa: ASYNC110 - nothing tells of a reload
        await asyncio.sleep(0.05)


def test_publish_resent_after_a_kill_is_stored_once(server: PenstockServer) -> None:
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, b"once", topic=b"line/1")
    name = f"{PRODUCER}console-1"
    with WirePeer(url(server), name, Role.CLIENT) as first:
        published = first.call(wire.Publish(1, wire.Wait.FLUSHED), bytes(batch))
    assert isinstance(published, wire.Published)
    server.kill()
    server.restart()
    with WirePeer(url(server), name, Role.CLIENT) as again:
        assert again.call(wire.Publish(1, wire.Wait.FLUSHED), bytes(batch)) == published
        found = again.call(wire.Scan("line/1", 0, 1 << 62, 1 << 20))
    assert isinstance(found, wire.Scanned)
    assert found.count == 1


def test_the_operators_connection_outlives_the_server(server: PenstockServer) -> None:
    asyncio.run(_outlives(server))


async def _outlives(server: PenstockServer) -> None:
    async with asyncio.timeout(60), operator(server, timeout_s=30) as ops:
        await ops.ask(ListClients("", False, 0), ClientsListed)
        server.kill()
        waiting = asyncio.create_task(ops.ask(ListClients("", False, 0), ClientsListed))
        await asyncio.to_thread(server.restart)
        assert (await waiting).clients == []
        assert ops.away == ""
        many = [
            asyncio.create_task(ops.ask(ListClients("", False, 0), ClientsListed)) for _ in range(MOST_REQUESTS + 5)
        ]
        outcomes = await asyncio.gather(*many, return_exceptions=True)
        assert [type(each) for each in outcomes] == [ClientsListed] * MOST_REQUESTS + [TooManyRequests] * 5


@pytest.mark.topologies("one process")
def test_without_a_server(server: PenstockServer) -> None:
    server.kill()
    asyncio.run(_nobody(server))


async def _nobody(server: PenstockServer) -> None:
    async with asyncio.timeout(30), operator(server, timeout_s=0.5) as ops:
        with pytest.raises(StoreUnavailable, match="is it running"):
            await ops.ask(ListClients("", False, 0), ClientsListed)


@pytest.mark.topologies("one process")
def test_a_data_folder_with_a_long_path(penstock_server: ServerFactory, tmp_path: Path) -> None:
    server = penstock_server(tmp_path / ("long" * 30) / "data", flush="async")
    asyncio.run(_listed(server))


async def _listed(server: PenstockServer) -> None:
    async with asyncio.timeout(30), operator(server) as ops, client(server) as sdk:
        assert (await ops.ask(ListClients("", False, 0), ClientsListed)).clients == []
        await sdk.publish("line/1", b"x")


@pytest.mark.topologies("one process")
def test_shared_subscriptions_have_room_for_the_largest_packet(penstock_server: ServerFactory) -> None:
    """A frame of the wire has 4 MiB by default, and a message without room in one goes to no consumer of a group."""
    server = penstock_server(flush="async", settings={"gateway.maximum_packet_size_bytes": 8 << 20})
    reader, writer = Device(server.port, "reader"), Device(server.port, "writer")
    for each in (reader, writer):
        assert each.connect(maximum_packet_size=8 << 20).reason_code is ReasonCode.SUCCESS
    reader.subscribe("$share/g/large", 1)
    payload = b"x" * (6 << 20)
    assert writer.published("large", payload) is ReasonCode.SUCCESS
    until(lambda: reader.next(Publish).payload == payload)
