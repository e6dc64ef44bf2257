"""A gateway without sockets or an event loop, and MQTT clients that speak to it in bytes.

    bench = Bench(tmp_path)
    device = bench.connect("device")
    device.publish("a", b"1", qos=1)
    assert device.received() == [PubAck(1)]

Whatever a client sends is followed by whole loop turns, until nothing is left to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gateway.auth.access import Access
from gateway.broker import Broker
from gateway.mqtt.codec import decode, decode_varint, encode, encode_varint
from gateway.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from gateway.mqtt.properties import Properties
from gateway.sessions.connection import Connection, Entrance
from gateway.settings import GatewaySettings
from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from store.log.api import OpenLog
from store.log.opening import open_log
from store.records.records import Record, RecordType, read_records
from store.settings import StoreSettings
from tests.support.store_protocol_between import WireBetween

P = TypeVar("P", bound=Packet)

TIMEOUT_S = 20
BUSY_S = 120  # a turn may do as little as the machine lets it
MOST_CLIENTS = 1_000


class FakeLoop:
    """Keeps what is to be called soon until the test runs it; its clock stands until the test moves it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.now_s = 1_000.0
        self._later: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.calls.append(callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        self.calls.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        """Waits until the clock has been moved so far."""
        self._later.append((self.now_s + delay, callback))

    def time(self) -> float:
        return self.now_s

    def run(self) -> None:
        deadline = time.monotonic() + BUSY_S
        self.calls += [call for due_s, call in self._later if due_s <= self.now_s]
        self._later = [each for each in self._later if each[0] > self.now_s]
        while self.calls:
            assert time.monotonic() < deadline, f"still busy after {BUSY_S} s"
            self.turn()

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class FakeTransport:
    """Collects what is written; like a real one it takes nothing once it is closed."""

    def __init__(self, peer: tuple[str, int] | None = ("192.0.2.1", 40_000)) -> None:
        self.written = bytearray()
        self.closed = self.aborted = self.ended = False
        self._reading = True
        self.unsent_bytes = 0
        self.high_bytes = 0
        self._peer = peer

    def write(self, data: bytes) -> None:
        assert not self.closed, "written to after close()"
        assert not self.ended, "written to after write_eof()"
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self._reading = False

    def is_reading(self) -> bool:
        return self._reading

    def resume_reading(self) -> None:
        self._reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int) -> None:
        self.high_bytes = high

    def get_extra_info(self, name: str) -> object:
        return self._peer if name == "peername" else None


def split_packets(data: bytes) -> list[tuple[int, bytes]]:
    """(first byte, body) of the packets in a byte stream, which must end with a whole one."""
    packets = []
    while data:
        size, start = decode_varint(data, 1)
        assert start + size <= len(data), "cut off in a packet"
        packets.append((data[0], data[start : start + size]))
        data = data[start + size :]
    return packets


class Client:
    """One client's end of a connection."""

    def __init__(
        self, bench: Bench, version: int = 5, namespace: str = "", kind: type[Connection] = Connection
    ) -> None:
        """`namespace`: of the listener; `kind`: of the gateway's end."""
        self.bench = bench
        self.version = version
        self.transport = FakeTransport()
        self.connection = kind(bench.broker.connections, Entrance(MOST_CLIENTS, namespace))
        self.connection.connection_made(self.transport)
        self._taken = 0
        self._next_id = 0
        self._lost = False

    # --- out

    def feed(self, data: bytes) -> None:
        """Have some bytes arrive, without a loop turn."""
        if self._lost or self.transport.closed:
            return
        buffer = self.connection.get_buffer(-1)
        for start in range(0, len(data), len(buffer)):
            chunk = data[start : start + len(buffer)]
            buffer[: len(chunk)] = chunk
            self.connection.buffer_updated(len(chunk))

    def send_bytes(self, data: bytes) -> None:
        self.feed(data)
        self.bench.run()

    def send(self, *packets: Packet) -> None:
        """Have packets arrive in one piece."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def connect(self, client_id: str = "", **fields: Any) -> ConnAck:
        """CONNECT and take the CONNACK, which must come first; properties may be given by name."""
        self.send(connect_packet(client_id, self.version, **fields))
        assert self.transport.written[:1] == b"\x20"
        return self.first(ConnAck)

    def publish(self, topic_name: str, payload: bytes = b"", qos: int = 0, **fields: Any) -> int | None:
        """Returns the packet_id that it took."""
        packet = self.publish_packet(topic_name, payload, qos, **fields)
        self.send(packet)
        return packet.packet_id

    def publish_packet(self, topic_name: str, payload: bytes = b"", qos: int = 0, **fields: Any) -> Publish:
        properties, fields = split_properties(fields)
        if qos:
            fields.setdefault("packet_id", self.next_id())
        return Publish(topic_name, payload, QoS(qos), properties=properties, **fields)

    def publish_whole(self, topic_name: str, payload: bytes = b"", qos: int = 0, **fields: Any) -> None:
        """Publish and go through all the handshake of its QoS."""
        packet_id = self.publish(topic_name, payload, qos, **fields)
        if qos == 1:
            assert self.one(PubAck) == PubAck(packet_id or 0)
        elif qos == 2:
            assert self.one(PubRec) == PubRec(packet_id or 0)
            self.send(PubRel(packet_id or 0))
            assert self.one(PubComp) == PubComp(packet_id or 0)

    def subscribe(self, *filters: str | SubscriptionRequest, qos: int = 0, **fields: Any) -> SubAck:
        """SUBSCRIBE and take the SUBACK; what else arrives is left for received()."""
        self.send(self.subscribe_packet(*filters, qos=qos, **fields))
        return self.first(SubAck)

    def subscribe_packet(self, *filters: str | SubscriptionRequest, qos: int = 0, **fields: Any) -> Subscribe:
        properties, fields = split_properties(fields)
        requests = tuple(
            SubscriptionRequest(each, QoS(qos), **fields) if isinstance(each, str) else each for each in filters
        )
        return Subscribe(self.next_id(), requests, properties)

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def disconnect(self, **fields: Any) -> None:
        """Leave as MQTT wants it."""
        properties, fields = split_properties(fields)
        self.send(Disconnect(properties=properties, **fields))
        self.lose()

    def lose(self) -> None:
        """The network connection is gone."""
        if not self._lost:
            self._lost = True
            self.connection.connection_lost(None)
            self.bench.run()

    # --- in

    def received(self) -> list[Packet]:
        """What arrived since this was last asked."""
        data = bytes(self.transport.written[self._taken :])
        self._taken = len(self.transport.written)
        return [decode(first_byte, body, self.version) for first_byte, body in split_packets(data)]

    def received_bytes(self) -> bytes:
        """The same as it came."""
        data = bytes(self.transport.written[self._taken :])
        self._taken = len(self.transport.written)
        return data

    def one(self, packet_class: type[P]) -> P:
        """The only packet that arrived."""
        (packet,) = self.received()
        assert isinstance(packet, packet_class), packet
        return packet

    def first(self, packet_class: type[P]) -> P:
        """Take the first packet of a kind out of what arrived; the rest stays."""
        at = self._taken
        for first_byte, body in split_packets(bytes(self.transport.written[at:])):
            packet = decode(first_byte, body, self.version)
            size = 1 + len(encode_varint(len(body))) + len(body)
            if isinstance(packet, packet_class):
                del self.transport.written[at : at + size]
                return packet
            at += size
        raise AssertionError(f"no {packet_class.__name__} arrived")

    def messages(self) -> list[Publish]:
        """The PUBLISH packets that arrived; nothing else may have."""
        packets = self.received()
        assert all(isinstance(packet, Publish) for packet in packets), packets
        return [packet for packet in packets if isinstance(packet, Publish)]

    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages()]

    def take(self) -> list[bytes]:
        """Payloads of what arrived, acknowledged as their QoS wants it, until nothing more comes."""
        payloads: list[bytes] = []
        while packets := self.received():
            for packet in packets:
                if isinstance(packet, Publish):
                    payloads.append(packet.payload)
                if answer := acknowledgement(packet):
                    self.send(answer)
        return payloads

    @property
    def is_closed(self) -> bool:
        return self.transport.closed


def acknowledgement(packet: Packet) -> Packet | None:
    """What a client answers."""
    if isinstance(packet, Publish) and packet.qos:
        return PubAck(packet.packet_id or 0) if packet.qos == 1 else PubRec(packet.packet_id or 0)
    if isinstance(packet, PubRel):
        return PubComp(packet.packet_id)
    return PubRel(packet.packet_id) if isinstance(packet, PubRec) else None


def split_properties(fields: dict[str, Any]) -> tuple[Properties, dict[str, Any]]:
    """Tell the names of MQTT 5 properties from those of a packet's own fields."""
    names = Properties.__dataclass_fields__
    properties = Properties(**{name: value for name, value in fields.items() if name in names})
    return properties, {name: value for name, value in fields.items() if name not in names}


def connect_packet(client_id: str = "", version: int = 5, **fields: Any) -> Connect:
    properties, fields = split_properties(fields)
    return Connect(client_id, version, properties=properties, **fields)


class WallClock:
    """time.time() and time.time_ns(), with as much added as a test wants to have passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0
        real, real_ns, monotonic = time.time, time.time_ns, time.monotonic
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead_s)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + self.ahead_s * 1_000_000_000)
        monkeypatch.setattr(time, "clock_gettime", lambda _: monotonic() + self.ahead_s)


class SlowDisk:
    """fdatasync() that takes as long as the test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._done = threading.Event()
        monkeypatch.setattr("store.log.flush.os.fdatasync", self._fdatasync)

    def _fdatasync(self, _: int) -> None:
        assert self._done.wait(TIMEOUT_S)

    def finish(self) -> None:
        """From now on it takes no time."""
        self._done.set()

    def stall(self) -> None:
        self._done.clear()


class Bench:
    """A broker over a message store in a folder. Close it at the end."""

    def __init__(
        self,
        folder: Path,
        clock: WallClock,
        flush: str = "async",
        segment_bytes: int = 16 << 20,
        apart: bool = False,
        access: Access | None = None,
        opens: OpenLog = open_log,
        **settings: Any,
    ) -> None:
        """`apart`: the gateway's store is at the other end of a wire. `access`: what clients are judged by."""
        self.loop = FakeLoop()
        self.apart = apart
        self.access = access
        self.opens = opens
        self._clock = clock
        self.store_settings = StoreSettings(folder, flush, segment_bytes)  # type: ignore[arg-type]
        self.settings = GatewaySettings(**settings)
        self._start()

    def _start(self) -> None:
        self.store = MessageStore(self.store_settings, opens=self.opens)
        self.hub = Hub(self.store)
        self.wire: WireBetween | None = None
        if self.apart:
            self.wire = WireBetween(self.hub, self.loop, self.store_settings.flush_timeout_ms / 1000)
        store = self.wire.gateway if self.wire else LocalStore.join(self.hub, "gateway")
        self.broker = Broker(store, self.settings, self.loop, self.access)
        self.run()

    def run(self) -> None:
        self.loop.run()

    def pass_time(self, seconds: int = 0) -> None:
        """Let time pass, and what happens several times a second happen once."""
        self.loop.now_s += seconds
        self._clock.ahead_s += seconds
        if self.wire is not None:
            self.wire.heartbeat()
            self.hub.tick()
        self.broker.tick()
        self.run()

    def wait_safe(self) -> None:
        """Wait until everything stored is safe, and let what waited for it happen."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.store.safe < self.store.end:
            assert time.monotonic() < deadline, "the flusher did not come that far"
            self.store.log.catch_up()  # as a tick does
            time.sleep(0.001)
        self.hub.safe_advanced()
        self.run()
        if self.store.safe < self.store.end:
            self.wait_safe()

    def restart(self) -> None:
        """As if the process had been killed now and started again: nobody is told."""
        self.run()
        self.loop.calls.clear()
        self.store.close()
        self._start()

    def restart_store(self) -> None:
        """Have the store's process killed and started again; the gateway is yet to connect to it."""
        assert self.wire is not None
        self.run()
        self.wire.cut()
        self.store.close()
        self.store = MessageStore(self.store_settings, opens=self.opens)
        self.hub = Hub(self.store, waits_for_peers=True)
        self.wire.begin(self.hub)

    def move(self, folder: Path) -> None:
        """Go on with another folder: a copy of this one, as it was left by a process that was killed."""
        self.store_settings = replace(self.store_settings, data=folder)
        self.restart()

    def close(self) -> None:
        self.store.close()

    # --- clients

    def client(self, version: int = 5, user: str = "", namespace: str = "") -> Client:
        """A network connection on which nothing was said yet; `user`: whom its certificate names."""
        client = Client(self, version, namespace)
        client.connection.peer_identity = user
        return client

    def connect(self, client_id: str = "", version: int = 5, **fields: Any) -> Client:
        """A client that was accepted, at a listener of `namespace`; `user` as in client()."""
        client = self.client(version, fields.pop("user", ""), fields.pop("namespace", ""))
        connack = client.connect(client_id, **fields)
        assert connack.reason_code == 0, connack
        return client

    def durable(self, client_id: str, version: int = 5, **fields: Any) -> Client:
        """A client whose session outlives its connection."""
        if version == 5:
            fields.setdefault("session_expiry_interval", 3_600)
        fields.setdefault("clean_start", False)
        return self.connect(client_id, version, **fields)

    # --- looking into the store

    def stored(self, start: int = 0) -> list[Record]:
        """The messages in the log from a log_offset on."""
        return [
            record
            for _, data in self.store.log.ranges(start, 1 << 30)
            for record in read_records(data)
            if record.type == RecordType.MESSAGE
        ]
