"""Devices that come and go, lose packets and subscribe anew, over a gateway that is restarted and killed: end to end,
QoS 1 arrives at least once, QoS 2 exactly once, each topic in order, and nothing arrives that nobody asked for. Each
device is a user of its own; others who try its client identifier are refused as long as it has a session.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.auth.access import AccessParts
from gateway.auth.identity import Certificates
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import (
    ConnAck,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    SubAck,
    UnsubAck,
    Unsubscribe,
)
from gateway.mqtt.reason_codes import ReasonCode
from store.log.checkpoint import copy_flushed
from store.topics import matches
from tests.support.mqtt_bench import Bench, Client, SlowDisk, WallClock, connect_packet
from tests.support.mqtt_packet_client import access_of

FILTERS = {"a/x": 1, "a/+": 2, "a/#": 1, "+/x": 2, "#": 2, "b": 2}
"""topic_filter → the QoS at which devices subscribe to it"""
TOPICS = ("a/x", "a/y", "b", "c/x")
DEVICES = ("d0", "d1", "d2")
FAST_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None  # no disk is needed for what happens here


@dataclass
class Device:
    """A client as MQTT wants it: what it must remember, it remembers across connections."""

    client_id: str
    version: int
    client: Client | None = None
    subscribed: set[str] = field(default_factory=set)
    received_ids: set[int] = field(default_factory=set)  # QoS 2, not released so far
    outgoing: dict[int, Packet] = field(default_factory=dict)
    inbox: list[Packet] = field(default_factory=list)
    arrived: list[bytes] = field(default_factory=list)

    def hello(self, clean_start: bool = False) -> bytes:
        properties = {"session_expiry_interval": 3_600, "receive_maximum": 3} if self.version == 5 else {}
        packet = connect_packet(self.client_id, self.version, clean_start=clean_start, keep_alive_s=0, **properties)
        return encode(packet, self.version)

    def connect(self, bench: Bench) -> None:
        self.client = bench.client(self.version, self.client_id)
        self.client.send_bytes(self.hello())
        bench.wait_safe()
        self.inbox = self.client.received()[1:]
        for packet in self.outgoing.values():
            if isinstance(packet, Publish):
                packet.dup = True
            self.client.send(packet)

    def lose(self, politely: bool = False) -> None:
        if self.client is not None:
            self.client.disconnect() if politely else self.client.lose()
        self.client, self.inbox = None, []

    def flicker(self, bench: Bench) -> None:
        """Connect, but be gone before the gateway gets round to it."""
        client = bench.client(self.version, self.client_id)
        client.feed(self.hello())
        client.lose()

    def start_anew(self, bench: Bench) -> None:
        """Both sides forget everything."""
        client = bench.client(self.version, self.client_id)
        client.send_bytes(self.hello(clean_start=True))
        bench.wait_safe()
        client.lose()
        self.received_ids.clear()
        self.outgoing.clear()
        self.subscribed.clear()

    def is_tried_by(self, bench: Bench, user: str, clean_start: bool) -> None:
        """Another user, or an anonymous client, says that it is this device."""
        has_session = self.client is not None or bench.store.sessions.get(self.client_id) is not None
        client = bench.client(self.version, user)
        client.send_bytes(self.hello(clean_start))
        if has_session:
            assert client.one(ConnAck).reason_code is ReasonCode.NOT_AUTHORIZED
            assert client.is_closed
            return
        client.lose()
        client = bench.client(self.version, user)
        client.send(connect_packet(self.client_id, self.version))
        client.lose()

    def free_id(self) -> int:
        return next(i for i in range(1, 65_536) if i not in self.outgoing)

    def look(self) -> None:
        if self.client is not None:
            assert not self.client.is_closed
            self.inbox += self.client.received()

    def handle(self, count: int) -> None:
        """Deal with some of the packets that have come."""
        self.look()
        for packet in self.inbox[:count]:
            answer = self.take(packet)
            if answer is not None and self.client is not None:
                self.client.send(answer)
        del self.inbox[:count]

    def take(self, packet: Packet) -> Packet | None:
        match packet:
            case Publish():
                return self.take_publish(packet)
            case PubAck() | PubComp():
                self.outgoing.pop(packet.packet_id, None)
            case PubRec():
                self.outgoing[packet.packet_id] = PubRel(packet.packet_id)
                return PubRel(packet.packet_id)
            case PubRel():
                self.received_ids.discard(packet.packet_id)
                return PubComp(packet.packet_id)
            case SubAck() | UnsubAck():
                pass
            case _:
                raise AssertionError(packet)
        return None

    def take_publish(self, packet: Publish) -> Packet | None:
        packet_id = packet.packet_id or 0
        if packet.qos != 2 or packet_id not in self.received_ids:
            self.arrived.append(packet.payload)
        if packet.qos == 2:
            self.received_ids.add(packet_id)
            return PubRec(packet_id)
        return PubAck(packet_id) if packet.qos else None


@dataclass
class Expected:
    """What one device must, or may, get of one message."""

    publisher: str
    topic: str
    qos: int
    number: int
    filters: set[str]
    loose: bool = False


class World:
    """The model: the gateway on one side, on the other what it owes to whom."""

    def __init__(self, folder: Path, clock: WallClock, disk: SlowDisk | None) -> None:
        self.folder = folder
        self.disk = disk
        access = access_of(AccessParts((Certificates(),), allow_anonymous=True))
        self.bench = Bench(folder / "0", clock, "sync" if disk else "async", segment_bytes=1 << 20, access=access)
        self.devices = {name: Device(name, 5 - i % 2) for i, name in enumerate(DEVICES)}
        self.expected: dict[str, dict[bytes, Expected]] = {name: {} for name in DEVICES}
        self.published = self.crashes = 0

    def step(self, action: str, name: str, number: int) -> None:
        """With a slow disk, what clients say and answer in their sessions is not safe before the next other step."""
        if self.disk is not None and action not in ("publish", "handle", "lose"):
            self.disk.finish()
            self.bench.wait_safe()
        self.take(action, self.devices[name], number)
        if self.disk is not None:
            self.disk.stall()

    def take(self, action: str, device: Device, number: int) -> None:
        match action:
            case "connect" if device.client is None:
                device.connect(self.bench)
            case "flicker" if device.client is None:
                device.flicker(self.bench)
            case "start anew" if device.client is None:
                self.give_up(device)
                device.start_anew(self.bench)
                self.loosen(device, FILTERS.keys())
            case "be tried by another":
                device.is_tried_by(self.bench, ("", "eve")[number % 2], clean_start=number % 3 == 0)
            case "lose":
                device.lose()
            case "disconnect":
                device.lose(politely=True)
            case "handle":
                device.handle(1 + number % 7)
            case "publish" if device.client is not None:
                self.publish(device, TOPICS[number % len(TOPICS)], number // len(TOPICS) % 3)
            case "subscribe" if device.client is not None:
                self.subscribe(device, list(FILTERS)[number % len(FILTERS)])
            case "unsubscribe" if device.client is not None:
                self.unsubscribe(device, list(FILTERS)[number % len(FILTERS)])
            case "time":
                self.bench.pass_time(1)
            case "restart" | "crash":
                self.stop(action == "crash")

    def publish(self, device: Device, topic: str, qos: int) -> None:
        assert device.client is not None
        self.published += 1
        payload = b"%d" % self.published
        packet = Publish(topic, payload, QoS(qos))
        if qos:
            packet.packet_id = device.free_id()
            device.outgoing[packet.packet_id] = packet
        for name, other in self.devices.items():
            filters = {each for each in other.subscribed if matches(each, topic)}
            if filters:
                best = min(qos, max(FILTERS[each] for each in filters))
                self.expected[name][payload] = Expected(device.client_id, topic, best, self.published, filters)
        device.client.send(packet)

    def subscribe(self, device: Device, topic_filter: str) -> None:
        assert device.client is not None
        device.client.send(device.client.subscribe_packet(topic_filter, qos=FILTERS[topic_filter]))
        device.subscribed.add(topic_filter)

    def unsubscribe(self, device: Device, topic_filter: str) -> None:
        assert device.client is not None
        device.client.send(Unsubscribe(device.client.next_id(), (topic_filter,)))
        device.subscribed.discard(topic_filter)
        self.loosen(device, {topic_filter})

    def loosen(self, device: Device, topic_filters: Collection[str]) -> None:
        """What was under way by these subscriptions may or may not arrive."""
        for expected in self.expected[device.client_id].values():
            expected.loose |= not expected.filters.isdisjoint(topic_filters)

    def give_up(self, device: Device) -> None:
        """What nobody acknowledged to it, and it does not send again, may or may not have been taken: perhaps it waited
        behind a SUBSCRIBE when the connection was lost.
        """
        given_up = {packet.payload for packet in device.outgoing.values() if isinstance(packet, Publish)}
        for expected in self.expected.values():
            for payload in given_up & expected.keys():
                expected[payload].loose = True

    def stop(self, crash: bool) -> None:
        for device in self.devices.values():
            if not crash:
                device.lose()
            device.client, device.inbox = None, []
        if crash:
            self.crash()
        else:
            self.bench.restart()

    def crash(self) -> None:
        """The log is all there; the index is as it was when it was last written, or lost."""
        self.crashes += 1
        copy = self.folder / f"{self.crashes}"
        shutil.copytree(self.bench.store_settings.data / "log", copy / "log")
        if self.crashes % 3:
            self.bench.store.index.flush()
            copy_flushed(self.bench.store.index.folder, copy / "index")
        self.bench.move(copy)

    def finish(self) -> None:
        """Let everybody get everything, then compare."""
        if self.disk is not None:
            self.disk.finish()
        for device in self.devices.values():
            if device.client is None:
                device.connect(self.bench)
        for _ in range(1_000):
            for device in self.devices.values():
                device.handle(1_000)
                self.bench.wait_safe()
                device.look()
            if not any(device.inbox for device in self.devices.values()):
                break
        for device in self.devices.values():
            assert device.outgoing == {}
            assert len(device.client.connection.inflight) == 0 if device.client else False
            self.compare(device)

    def compare(self, device: Device) -> None:
        counts = Counter(device.arrived)
        expected = self.expected[device.client_id]
        resent = {payload for payload in counts if payload not in expected}
        assert resent <= self.twice_stored(), (device.client_id, resent)
        for payload, message in expected.items():
            if message.loose or not message.qos:
                continue
            assert counts[payload] >= 1, (device.client_id, payload, "never came")
            assert message.qos < 2 or counts[payload] == 1, (device.client_id, payload, counts[payload])
        self.compare_order(device)

    def compare_order(self, device: Device) -> None:
        """Of each topic, publisher and QoS: first arrivals come in the order of publishing."""
        expected = self.expected[device.client_id]
        first = [expected[p] for p in dict.fromkeys(device.arrived) if p in expected and not expected[p].loose]
        for stream in product(DEVICES, TOPICS, (1, 2)):
            numbers = [each.number for each in first if (each.publisher, each.topic, each.qos) == stream]
            assert numbers == sorted(numbers), (device.client_id, stream)

    def twice_stored(self) -> set[bytes]:
        """Payloads that a publisher sent again at QoS 1, later than some device subscribed."""
        counts = Counter(record.payload for record in self.bench.stored() if record.qos == 1)
        return {payload for payload, count in counts.items() if count > 1}


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["connect"] * 8
            + ["publish"] * 12
            + ["handle"] * 10
            + ["subscribe"] * 6
            + ["be tried by another"] * 3
            + ["unsubscribe", "lose", "lose", "disconnect", "flicker", "start anew", "time", "restart", "crash"]
        ),
        st.sampled_from(DEVICES),
        st.integers(0, 11),
    ),
    min_size=10,
    max_size=120,
)
START = [
    ("connect", "d0", 0),
    ("connect", "d1", 0),
    ("connect", "d2", 0),
    ("subscribe", "d1", 4),
    ("subscribe", "d2", 1),
]


@contextmanager
def world(clock: WallClock, disk: SlowDisk | None = None) -> Iterator[World]:
    with TemporaryDirectory(dir=FAST_FOLDER) as folder:
        if disk is not None:
            disk.finish()
        world = World(Path(folder), clock, disk)
        try:
            yield world
        finally:
            if disk is not None:
                disk.finish()
            world.bench.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


@pytest.fixture(params=["async", "sync"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SlowDisk | None:
    return SlowDisk(monkeypatch) if request.param == "sync" else None


BEHIND_A_SUBSCRIBE = [("subscribe", "d0", 0), ("publish", "d0", 4), ("lose", "d0", 0)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
@example([*BEHIND_A_SUBSCRIBE, ("start anew", "d0", 0)])
@example([*BEHIND_A_SUBSCRIBE, ("connect", "d0", 0)])
def test_sessions_keep_the_promises_of_mqtt(
    clock: WallClock, disk: SlowDisk | None, steps: list[tuple[str, str, int]]
) -> None:
    with world(clock, disk) as played:
        for step in [*START, *steps]:
            played.step(*step)
        played.finish()
