"""`penstock store` as a subprocess, for tests that speak the wire protocol to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from loadtest.chaos.part import Part
from store.wire.messages import Role
from tests.support.server_process import free_port
from tests.support.store_protocol_client import WirePeer


class StoreProcess(Part):
    """Started when it is made; start() begins it again on the same folder and address."""

    def __init__(self, folder: Path, listen: str = "", settings: Mapping[str, object] | None = None) -> None:
        self.data = folder / "data"
        self.url = listen or f"tcp://127.0.0.1:{free_port()}"
        self._peers: list[WirePeer] = []
        settings = {"store.flush": "async"} | dict(settings or {})
        super().__init__(folder / "store.log", ["store", "--data", str(self.data), "--listen", self.url], settings)

    def said(self, pattern: str) -> str:
        """What the last line that begins so says behind it."""
        found: list[str] = re.findall(rf"^{pattern}(\S*)", self.log_text(), re.MULTILINE)
        return found[-1]

    def connect(self, name: str, role: Role = Role.GATEWAY, token: str = "", password: str = "") -> WirePeer:
        peer = WirePeer(self.url, name, role, token, password)
        self._peers.append(peer)
        return peer

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self.resume()
        self.kill()
