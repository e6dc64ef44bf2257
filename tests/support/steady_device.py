"""A device that publishes again and again, whatever happens to its broker."""

from __future__ import annotations

import threading

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.interop.programs import PahoClient

PATIENCE_S = 240


class SteadyDevice:
    """Publishes numbers to line/0 to line/2 in turn, each with an id, on a thread; each waits for the one before."""

    def __init__(self, port: int, pause_s: float = 0.002) -> None:
        self.acked = 0
        """The numbers below it."""
        self._pause_s = pause_s
        self._is_acked = threading.Event()
        self._client = PahoClient(port)
        self._client.client.reconnect_delay_set(1, 1)
        self._client.client.on_publish = lambda *_: self._is_acked.set()
        self._client.connect()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        while not self._is_over.wait(self._pause_s):
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = [("penstock-id", f"D-{self.acked}")]
            self._is_acked.clear()
            # Without a connection paho keeps it until there is one.
            self._client.client.publish(f"line/{self.acked % 3}", b"%d" % self.acked, 1, False, properties)
            if not self._is_acked.wait(PATIENCE_S):
                return
            self.acked += 1

    def close(self) -> None:
        """It may come more than once."""
        self._is_over.set()
        self._thread.join()
        self._client.leave()
