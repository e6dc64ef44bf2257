"""Namespaces and clients of the store: what they share with devices of theirs, and what they cannot have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import Publish
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.part import Part
from penstock import Client
from penstock.sdk.errors import BadMessage, CannotConnect, NotFound, NotPermitted, StoreRefused
from store.wire import group_messages as of_group
from store.wire import log_messages as of_log
from store.wire import messages as wire
from store.wire.messages import Failed, FailureCode, Role
from tests.support.mqtt_packet_client import Device, write_passwords
from tests.support.server_process import free_port, wait_for_port
from tests.support.store_process import StoreProcess

pytestmark = pytest.mark.asyncio

TOKENS = "# one line for each\nacme acme-secret\nbeta beta-secret\n"
SECRETS = {"acme": "acme-secret", "beta": "beta-secret", "": "for-all"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
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


async def test_history_from_any_place_is_the_namespaces(store: StoreProcess) -> None:
    """Replay at the store: positions, times and queue_offsets mean the namespace's own messages."""
    receipts = {}
    for number in range(3):
        for name in SECRETS:
            async with client(store, name) as mine:
                receipts[name, number] = await mine.publish("line/7", f"{name}{number}".encode())
    for name in SECRETS:
        payloads = [f"{name}{number}".encode() for number in range(3)]
        async with asyncio.timeout(20), client(store, name) as mine:
            middle = receipts[name, 1]
            assert middle.queue_offset == 1
            others = receipts["beta" if name != "beta" else "acme", 1]
            for start, expected in (("earliest", 0), ("-1h", 0), ("@1", 1), (middle.log_offset, 1), ("now", 3)):
                found = [each.payload async for each in mine.read("line/7", start=start)]
                assert found == payloads[expected:], start
            found = [each.payload async for each in mine.read("line/7", stop=middle.log_offset)]
            assert found == payloads[:1]
            # a place where another namespace's message stands tells nothing of it
            found = [each.payload async for each in mine.read("#", start=others.log_offset)]
            assert set(found) <= set(payloads)
    async with asyncio.timeout(20), client(store, "acme") as mine:
        following = aiter(mine.read("#", start=receipts["acme", 1].log_offset, stop=None))
        assert [(await anext(following)).payload for _ in range(2)] == [b"acme1", b"acme2"]
        for other in ("beta", ""):
            async with client(store, other) as theirs:
                await theirs.publish("more", b"theirs")
        await mine.publish("more", b"mine")
        assert (await anext(following)).payload == b"mine"


async def test_operator_client_sees_names_as_in_the_log(store: StoreProcess) -> None:
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
async def test_sdk_client_cannot_use_names_of_other_namespaces(store: StoreProcess, name: str) -> None:
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
    read = peer.call(wire.GetDelayed(late.log_offset, late.due_ms))  # type: ignore[attr-defined]
    assert isinstance(read, Failed)
    assert read.code is FailureCode.NO_SUCH_POSITION
    assert peer.call(of_group.GroupList("", 0)) == of_group.GroupsListed([], False)


async def test_a_client_may_count_the_messages_of_its_topics(store: StoreProcess) -> None:
    async with client(store, "acme") as own:
        await own.publish("a", b"1")
    peer = store.connect("counting", Role.CLIENT, SECRETS["acme"])
    assert peer.call(of_log.QueueOffsets(1 << 62, ["$ns:acme/a"])) == of_log.QueueOffsetsFound([1])
    refused = peer.call(of_log.QueueOffsets(1 << 62, ["$ns:acme/a"] * (of_log.MOST_TOPICS + 1)))
    assert isinstance(refused, Failed)
    assert "topics at a time" in refused.message


RULES = """
[[rule]]
namespaces = ["acme"]
users = ["alice"]
allow = ["publish", "retain", "subscribe", "replay"]
topics = ["line/#", "$dead/g/line/#", "users/%u/#"]

[[rule]]
users = ["bob"]
allow = ["publish", "subscribe", "replay"]
topics = ["#"]
"""


class Users:
    """A store that judges users."""

    def __init__(self, folder: Path, separator: str) -> None:
        passwords, rules, tokens = folder / "passwords", folder / "rules.toml", folder / "tokens"
        write_passwords(passwords, {name: name for name in ("acme/alice", "acme/bob", "beta/alice", "carol", "bob")})
        rules.write_text(RULES)
        tokens.write_text(TOKENS)
        tokens.chmod(0o600)
        auth = {"password_file": passwords, "permissions_file": rules, "namespace_separator": separator}
        settings = {f"auth.{name}": value for name, value in auth.items()}
        wire_settings = {"wire.client_token": "for-all", "wire.namespace_tokens_file": tokens}
        self.store = StoreProcess(folder, settings=settings | wire_settings)

    def client(self, user: str, namespace: str = "", token: str = "for-all", password: str = "") -> Client:
        url = self.store.url.replace("tcp://", "penstock://")
        return Client(url, token=token, user=user, password=password or user, namespace=namespace, timeout_s=10)


@pytest.fixture
def users(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Users]:
    found = Users(tmp_path, getattr(request, "param", "/"))
    yield found
    found.store.close()


async def test_a_user_of_a_namespace_is_judged_by_the_names_that_it_knows(users: Users) -> None:
    async with users.client("acme/bob") as mine:
        for topic in ("line/7", "secret"):
            await mine.publish(topic, b"bob", key="b")
            await mine.publish(topic, b"late", delay=3_600)
    async with asyncio.timeout(30), users.client("acme/alice") as mine:
        receipt = await mine.publish("line/7", b"x", key="k", retain=True)
        await mine.publish("users/alice/1", b"")
        for topic in ("other", "users/bob/1", "secret"):
            with pytest.raises(NotPermitted) as caught:
                await mine.publish(topic, b"")
            assert (caught.value.action, caught.value.topic) == ("publish", topic)
        assert (await mine.get(receipt.message_id)).topic == "line/7"
        assert [each.payload async for each in mine.read("line/#")] == [b"bob", b"x"]
        assert [each.payload for each in await mine.find("k", topic="line/#")] == [b"x"]
        for topic_filter in ("#", "secret"):
            with pytest.raises(NotPermitted, match=f"subscribe {topic_filter}"):
                _ = [each async for each in mine.read(topic_filter)]
        with pytest.raises(NotPermitted, match="subscribe #"):
            await mine.find("b")
        assert [each.topic async for each in mine.delayed()] == ["line/7"]
        async with mine.subscribe("line/7", group="g") as members:
            assert await (await anext(aiter(members))).reject("no use")
        assert (await anext(aiter(mine.read("$dead/g/line/#", stop=None)))).payload == b"bob"
        with pytest.raises(NotPermitted):
            async with mine.subscribe("secret", group="g"):
                pass
    async with users.client("acme/bob") as mine:  # who may read all of his namespace
        assert {each.topic async for each in mine.read("#")} == {"line/7", "secret", "users/alice/1"}
        assert len(await mine.find("b")) == 2
    async with users.client("bob") as other:
        assert [each async for each in other.read("#")] == []
        with pytest.raises((NotPermitted, NotFound)):
            await other.get(receipt.message_id)
        with pytest.raises(StoreRefused, match="another namespace"):
            _ = [each async for each in other.read("$ns:acme/#")]
    async with users.client("bob", "*") as other:
        for ask in (other.get(receipt.message_id), other.publish("$ns:acme/line/7", b"")):
            with pytest.raises(NotPermitted):
                await ask
        with pytest.raises(NotPermitted):
            _ = [each async for each in other.read("$ns:acme/#")]
        assert [each async for each in other.delayed()] == []
        assert await other.find("k") == []
    async with users.client("beta/alice") as other:  # the rule is for acme
        with pytest.raises(NotPermitted):
            await other.publish("line/7", b"")


async def test_namespace_of_an_sdk_user(users: Users) -> None:
    async with users.client("alice", "acme", password="acme/alice") as mine:
        receipt = await mine.publish("line/7", b"x")
    async with users.client("alice", token="acme-secret", password="acme/alice") as mine:
        assert (await mine.get(receipt.message_id)).topic == "line/7"
    for user, namespace, token in (
        ("acme/alice", "*", "for-all"),
        ("acme/alice", "beta", "for-all"),
        ("acme/alice", "", "beta-secret"),
        ("alice", "acme", "for-all"),  # with another password
        ("carol", "acme", "for-all"),
        ("carol", "", "acme-secret"),
        ("acme/alice", "acme/alice", "for-all"),
    ):
        with pytest.raises(CannotConnect, match=r"\(user\)"):
            await users.client(user, namespace, token).connect()


@pytest.mark.parametrize("users", [""], indirect=True)
async def test_a_hello_alone_proves_no_namespace(users: Users) -> None:
    with pytest.raises(CannotConnect, match="asks for the namespace 'acme'"):
        await users.client("bob", "acme").connect()
    async with users.client("bob", token="acme-secret") as mine:
        receipt = await mine.publish("line/7", b"x")
    async with users.client("bob") as other:
        with pytest.raises((NotPermitted, NotFound)):
            await other.get(receipt.message_id)
