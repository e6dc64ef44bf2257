"""A client for tests of who may do what: any packet, any version, on a real socket; and the files that servers read."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gateway.auth.access import Access, AccessParts
from gateway.auth.attempts import Attempts
from gateway.auth.passwords import PasswordLine, hashed, parse_passwords
from gateway.auth.scram import ScramVerifier
from gateway.auth.settings import AuthSettings
from gateway.delivery.replays import FROM_PROPERTY
from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import split_properties
from tests.support.server_process import PenstockServer

TIMEOUT_S = 20
P = TypeVar("P", bound=Packet)


def access_of(parts: AccessParts) -> Access:
    """What clients are judged by, with default settings and a clock that stands still."""
    return Access(parts, AuthSettings(), Attempts(AuthSettings(), lambda: 0.0))


class Device:
    """One connection; packets are read when they are asked for."""

    def __init__(self, port: int, client_id: str = "", version: int = 5) -> None:
        self.client_id = client_id
        self.version = version
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._data = b""
        self._next_id = 0

    def send(self, packet: Packet) -> None:
        self._socket.sendall(encode(packet, self.version))

    def connect(self, username: str | None = None, password: str | None = None, **fields: Any) -> ConnAck:
        """`fields` are those of Connect, or properties by name."""
        self.send_connect(username, password, **fields)
        return self.next(ConnAck)

    def send_connect(self, username: str | None = None, password: str | None = None, **fields: Any) -> None:
        secret = None if password is None else password.encode()
        properties, fields = split_properties(fields)
        packet = Connect(self.client_id, self.version, username=username, password=secret, properties=properties)
        self.send(replace(packet, **fields))

    def next(self, kind: type[P]) -> P:
        """What comes next, which has to be of this kind."""
        packet = self.receive()
        assert isinstance(packet, kind), packet
        return packet

    def receive(self) -> Packet | None:
        """None: the server closed the connection."""
        while True:
            packet = self._take()
            if packet is not None:
                return packet
            try:
                data = self._socket.recv(65_536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._data += data

    def _take(self) -> Packet | None:
        try:
            size, start = decode_varint(self._data[:5], 1)
        except ProtocolError:
            return None
        if start + size > len(self._data):
            return None
        packet = decode(self._data[0], self._data[start : start + size], self.version)
        self._data = self._data[start + size :]
        return packet

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **fields: Any) -> None:
        properties, fields = split_properties(fields)
        packet_id = self.next_id() if qos else None
        self.send(Publish(topic, payload, QoS(qos), packet_id=packet_id, properties=properties, **fields))

    def published(self, topic: str, payload: bytes = b"", retain: bool = False) -> ReasonCode:
        """Publish with QoS 1; what the server says to it."""
        self.publish(topic, payload, 1, retain=retain)
        return self.next(PubAck).reason_code

    def subscribe(self, topic_filter: str, qos: int = 0, history: str = "") -> ReasonCode:
        """`history`: where in it to begin."""
        properties = Properties(user_properties=((FROM_PROPERTY, history),) if history else ())
        self.send(Subscribe(self.next_id(), (SubscriptionRequest(topic_filter, QoS(qos)),), properties))
        return self.next(SubAck).reason_codes[0]

    def closed_with(self) -> ReasonCode | None:
        """Wait for the server to close the connection; what it says before."""
        last = None
        while (packet := self.receive()) is not None:
            last = packet
        return last.reason_code if isinstance(last, Disconnect) else None

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()


def write_passwords(file: Path, passwords: Mapping[str, str], scram: bool = False) -> Path:
    lines = (
        PasswordLine(hashed(password), ScramVerifier.of(password).text() if scram else "").text(user)
        for user, password in passwords.items()
    )
    return write_secret(file, "".join(f"{line}\n" for line in lines))


def set_passwords(file: Path, **passwords: str) -> Path:
    """As `penstock passwd` does it, without a process for each user: other lines stay, and the file is replaced."""
    lines = dict(parse_passwords(file.read_text())) if file.exists() else {}
    lines |= {user: PasswordLine(hashed(password)) for user, password in passwords.items()}
    text = "".join(f"{line.text(user)}\n" for user, line in lines.items())
    return write_secret(file.with_name(f"{file.name}.new"), text).replace(file)


def write_secret(file: Path, text: str) -> Path:
    """A file that no other user can read."""
    file.touch(0o600)
    file.chmod(0o600)
    file.write_text(text)
    return file


def reload(server: PenstockServer) -> None:
    """SIGHUP, and wait until each gateway that has a log of its own says that it is done."""
    before = [text.count("reloaded") for text in server.gateway_logs()]
    server.signal(signal.SIGHUP)
    until(lambda: all(text.count("reloaded") > n for text, n in zip(server.gateway_logs(), before, strict=True)))


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)
