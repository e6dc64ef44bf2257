"""A device that publishes so many messages a second at QoS 1, whatever happens, and knows what was acknowledged."""

from __future__ import annotations

import random
import select
import socket
import threading
import time

from tests.support.mqtt_byte_client import connect, publish
from tests.tier.tally import Tally

TICK_S = 0.01
TOPICS = 1_000
RANDOM_BYTES = 45  # as text twice as many: a payload of 100 bytes
MQTT_3 = 4
PUBACK_BYTES = 4
MOST_IN_FLIGHT = 60_000
PATIENCE_S = 60


class SteadyPublisher:
    """Publishes from a thread of its own until finish() or close()."""

    def __init__(self, port: int, per_s: int, seed: int) -> None:
        self.sent = Tally()
        self.acked = 0
        self.longest_wait_s = 0.0
        """The longest time without an acknowledgement while one was due."""
        self._per_s = per_s
        self._chance = random.Random(seed)
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(connect(b"steady", MQTT_3, keep_alive_s=0))
        assert self._socket.recv(4, socket.MSG_WAITALL) == b"\x20\2\0\0"
        self._finishing, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> Tally:
        """Publish no more, and wait until all is acknowledged. Returns what was."""
        self._finishing.set()
        self._thread.join(PATIENCE_S)
        assert self.acked == self.sent.count
        return self.sent

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        began_s = moved_s = time.monotonic()
        while not self._closing.is_set():
            now_s = time.monotonic()
            if self.acked == self.sent.count:
                moved_s = now_s
                if self._finishing.is_set():
                    return
            if not self._finishing.is_set():
                room = MOST_IN_FLIGHT - (self.sent.count - self.acked)
                self._publish(min(int((now_s - began_s) * self._per_s) - self.sent.count, room))
            taken = self._take_acknowledgements()
            now_s = time.monotonic()
            if taken or self.acked < self.sent.count:
                self.longest_wait_s = max(self.longest_wait_s, now_s - moved_s)
            if taken:
                moved_s = now_s
            self._closing.wait(TICK_S)

    def _publish(self, number: int) -> None:
        packets, tally = [], self.sent
        for each in range(tally.count, tally.count + number):
            payload = b"%010d%s" % (each, self._chance.randbytes(RANDOM_BYTES).hex().encode())
            packets.append(
                publish(b"fleet/%03d/reading" % (each % TOPICS), payload, 1, each % MOST_IN_FLIGHT + 1, properties=None)
            )
            tally = tally.plus(payload)
        self.sent = tally
        self._socket.sendall(b"".join(packets))

    def _take_acknowledgements(self) -> int:
        """All that have come. Each is a PUBACK of four bytes."""
        readable, _, _ = select.select([self._socket], [], [], 0)
        if not readable:
            return 0
        data = self._socket.recv(1 << 20)
        data += self._socket.recv(-len(data) % PUBACK_BYTES, socket.MSG_WAITALL)
        assert data, "the broker hung up"
        assert data[::PUBACK_BYTES] == b"\x40" * (len(data) // PUBACK_BYTES)
        self.acked += len(data) // PUBACK_BYTES
        return len(data)
