"""Namespaces and clients of the store: what they share with devices of theirs, and what they cannot have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.packets import Publish
from gateway.reason_codes import ReasonCode
from loadtest.chaos.part import Part
from penstock import Client
from penstock.sdk.errors import BadMessage, CannotConnect, NotFound, StoreRefused
from store.wire import group_messages as of_group
from store.wire import log_messages as of_log
from store.wire import messages as wire
from store.wire.messages import Failed, FailureCode, Role
from tests.auth_client import Device
from tests.server_process import free_port, wait_for_port
from tests.store_process import StoreProcess

pytestmark = [pytest.mark.interop, pytest.mark.asyncio]

TOKENS = "# one line for each\nacme acme-secret\nbeta beta-secret\n"
SECRETS = {"acme": "acme-secret", "beta": "beta-secret", "": "for-all"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    settings = {"wire.client_token": "for-all", "wire.namespace_tokens_file": tokens, "wire.gateway_token": "gateways"}
    running = StoreProcess(tmp_path, settings=settings)
    yield running
    running.close()


@pytest.fixture
def ports(store: StoreProcess, tmp_path: Path) -> Iterator[dict[str, int]]:
    """Of a gateway's listeners, by namespace."""
    found = {name: free_port() for name in SECRETS}
    listen = [f"mqtt://127.0.0.1:{port}" + (f"?namespace={name}" if name else "") for name, port in found.items()]
    command = ["gateway", "--store", store.url, *(part for url in listen for part in ("--listen", url))]
    gateway = Part(tmp_path / "gateway.log", command, {"gateway.store_token": "gateways"})
    for port in found.values():
        wait_for_port(port, gateway.process)
    yield found
    gateway.kill()


def client(store: StoreProcess, name: str, namespace: str = "") -> Client:
    return Client(store.url.replace("tcp://", "penstock://"), token=SECRETS[name], namespace=namespace, timeout_s=10)


async def test_each_has_its_own(store: StoreProcess) -> None:
    for name in SECRETS:
        async with client(store, name) as mine:
            receipt = await mine.publish("line/7", name.encode(), key="k", retain=True)
            assert (receipt.queue, receipt.queue_offset) == ("line/7", 0)
            late = await mine.publish("late", b"", key=name or None, delay=3_000)
            assert (await mine.get(receipt.message_id)).topic == "line/7"
            assert late.due_at is not None
    for name in SECRETS:
        async with asyncio.timeout(20), client(store, name) as mine:
            for topic_filter in ("#", "line/#", "+/7", "line/7"):
                found = [(each.topic, each.payload) async for each in mine.read(topic_filter)]
                assert ("line/7", name.encode()) in found
                assert {payload for _, payload in found} <= {name.encode(), b""}
            assert [each.payload for each in await mine.find("k")] == [name.encode()]
            assert [each.payload for each in await mine.find("k", topic="line/#")] == [name.encode()]
            pending = [each async for each in mine.delayed()]
            assert [(each.topic, each.key) for each in pending] == [("late", name or None)]
            async with mine.subscribe("line/7", group="g") as members:
                delivery = await anext(aiter(members))
                assert (delivery.topic, delivery.payload) == ("line/7", name.encode())
                assert await delivery.reject("no use")
            dead = await anext(aiter(mine.read("$dead/#", stop=None)))
            assert (dead.topic, dead.headers["penstock-topic"]) == ("$dead/g/line/7", "line/7")
            assert dead.headers["penstock-filter"] == "line/7"
            assert await pending[0].cancel()


async def test_one_client_sees_the_log_as_it_is(store: StoreProcess) -> None:
    async with client(store, "acme") as mine:
        await mine.publish("line/7", b"x")
    async with client(store, "", namespace="*") as operator:
        assert [each.topic async for each in operator.read("$ns:acme/#")] == ["$ns:acme/line/7"]


async def test_devices_and_services_of_a_namespace(store: StoreProcess, ports: dict[str, int]) -> None:
    devices = {}
    for name, port in ports.items():
        devices[name] = Device(port, "d")
        assert devices[name].connect().reason_code is ReasonCode.SUCCESS
        assert devices[name].subscribe("down/#", 1) is ReasonCode.GRANTED_QOS_1
        assert devices[name].published("up/1", name.encode()) is ReasonCode.SUCCESS
    for name, device in devices.items():
        async with client(store, name) as mine:
            (message,) = [each async for each in mine.read("up/#")]
            assert (message.topic, message.client_id, message.payload) == ("up/1", "d", name.encode())
            await mine.publish("down/1", name.encode())
        arrived = await asyncio.to_thread(device.next, Publish)
        assert (arrived.topic_name, arrived.payload) == ("down/1", name.encode())


async def test_a_token_is_for_its_namespace_alone(store: StoreProcess) -> None:
    for name, namespace in (("acme", "beta"), ("acme", "*"), ("beta", "acme")):
        with pytest.raises(CannotConnect, match="not the token of namespace"):
            await client(store, name, namespace).connect()
    with pytest.raises(CannotConnect, match="no namespace is called"):
        await client(store, "", "No Name").connect()
    async with client(store, "", "beta") as chosen:  # whoever may see all may choose
        assert (await chosen.publish("a", b"")).queue == "a"


@pytest.mark.parametrize("name", ["", "beta"])
async def test_what_a_client_may_not_name(store: StoreProcess, name: str) -> None:
    async with client(store, "acme") as victim:
        receipt = await victim.publish("a", b"secret", key="k")
        late = await victim.publish("a", b"late", delay=3_000)
    async with client(store, name) as thief:
        with pytest.raises(NotFound):
            await thief.get(receipt.message_id)
        assert await thief.find("k") == []
        assert [each async for each in thief.delayed()] == []
        with pytest.raises(BadMessage):
            await thief.publish("a", b"", response_topic="$ns:acme/a")
        if not name:  # with a namespace the name is one below its own
            with pytest.raises(StoreRefused, match="another namespace"):
                await thief.publish("$ns:acme/a", b"forged")
            with pytest.raises(StoreRefused, match="another namespace"):
                _ = [each async for each in thief.read("$ns:acme/#")]
    token = SECRETS[name]
    peer = store.connect("thief", Role.CLIENT, token)
    refused = (
        wire.Scan("$ns:acme/#", 0, 1 << 40, 1 << 20),
        wire.Seek("$ns:acme/#", "earliest", 0),
        wire.Find("k", "$ns:acme/a", "earliest", "now", 1 << 40, 9),
        wire.Follow("$ns:acme/#", False, -1, False),
        of_group.GroupOpen("g", "$ns:acme/#", "c", None, "earliest"),
        of_group.GroupOpen("$ns:acme:g", "a", "c", None, "earliest"),
        of_group.GroupReset("$ns:acme:g", "$ns:acme/#", "earliest"),
        of_group.GroupDrop("$ns:acme:g", "$ns:acme/#"),
        of_log.Topics("$ns:acme/#", ""),
    )
    whole = (
        of_log.Segments(0),
        of_log.ReadLog(0, 1 << 20),
        of_log.SeekLog(0, 0, 0),
        of_log.QueueOffsets(9, ["$ns:acme/a"]),
    )
    for request in (*refused, *(whole if name else ())):
        answer = peer.call(request)
        assert isinstance(answer, Failed), request
        assert answer.code is FailureCode.NOT_ALLOWED
    cancelled = peer.call(wire.CancelDelayed(late.log_offset, late.due_ms))  # type: ignore[attr-defined]
    assert cancelled == wire.DelayedCancelled(False)
    assert peer.call(of_group.GroupList("", 0)) == of_group.GroupsListed([], False)
