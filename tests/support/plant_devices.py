"""The devices of a plant, and an application beside them, on plain sockets.

    python -m tests.support.plant_devices PORT DEVICES MINUTES

Each device says once a minute what it measures, on a connection of its own; here as fast as the server takes it.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections import defaultdict
from contextlib import suppress

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest

ANSWER_S = 300
TOGETHER = 12  # minutes
ACK_BYTES = 4
VERSION = 4


def topic_of(device: int) -> str:
    return f"line/{device:03}"


def celsius_of(device: int, minute: int) -> int:
    """From 0 to 99, each as often as any other."""
    return (7 * device + minute) % 100


def packet_of(device: int, minute: int) -> bytes:
    payload = b'{"celsius": %2d, "minute": %4d}' % (celsius_of(device, minute), minute)
    return encode(Publish(topic_of(device), payload, QoS.AT_LEAST_ONCE, packet_id=minute % 65_535 + 1), VERSION)


def minute_of(payload: bytes) -> int:
    return int(payload[-5:-1])


PACKET_BYTES = len(packet_of(0, 0))


def connected(port: int, client_id: str, clean_start: bool = True) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), ANSWER_S)
    client.sendall(encode(Connect(client_id, VERSION, clean_start=clean_start, keep_alive_s=0), VERSION))
    assert client.recv(4, socket.MSG_WAITALL)[::3] == b"\x20\x00"
    return client


class Application:
    """Subscribes to all that the devices say at QoS 1, with a session, on a thread. `minutes`: of each topic, as they
    came."""

    def __init__(self, port: int) -> None:
        self.minutes: dict[str, list[int]] = defaultdict(list)
        self.came = 0
        self._socket = connected(port, "application", clean_start=False)
        self._socket.sendall(encode(Subscribe(1, (SubscriptionRequest("line/#", QoS.AT_LEAST_ONCE),)), VERSION))
        assert self._socket.recv(5, socket.MSG_WAITALL)[:2] == b"\x90\x03"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        rest = b""
        with suppress(OSError):
            while data := self._socket.recv(1 << 16):
                rest += data
                acks = bytearray()
                for at in range(0, len(rest) - PACKET_BYTES + 1, PACKET_BYTES):
                    packet = rest[at : at + PACKET_BYTES]
                    assert packet[0] & 0xF6 == 0x32, packet  # a PUBLISH at QoS 1
                    self.minutes[packet[4:12].decode()].append(minute_of(packet))
                    acks += b"\x40\x02" + packet[12:14]
                whole = len(acks) // ACK_BYTES
                rest = rest[whole * PACKET_BYTES :]
                self._socket.sendall(acks)
                self.came += whole

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def main(port: int, devices: int, minutes: int) -> None:
    clients = [connected(port, f"device-{device}") for device in range(devices)]
    for at in range(0, minutes, TOGETHER):
        some = range(at, min(at + TOGETHER, minutes))
        for device, client in enumerate(clients):
            client.sendall(b"".join(packet_of(device, minute) for minute in some))
        for client in clients:
            acks = client.recv(ACK_BYTES * len(some), socket.MSG_WAITALL)
            assert len(acks) == ACK_BYTES * len(some), "the server ended the connection"
    for client in clients:
        client.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
