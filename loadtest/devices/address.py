"""The address of a broker, and the layers between its socket and MQTT."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from loadtest.devices.layers import DeviceLayer, DeviceTls, DeviceTlsWebSocket, DeviceWebSocket
from loadtest.errors import LoadTestError

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}


class BrokerAddress(NamedTuple):
    """The address of a broker; `tls`: the context with its trusted authorities, for mqtts and wss."""

    host: str
    port: int
    scheme: str = "mqtt"
    path: str = ""
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str, ca_file: Path | None = None, is_verified: bool = True) -> BrokerAddress:
        """Parse `mqtt://`, `mqtts://`, `ws://` or `wss://HOST[:PORT]`, the last two with a path. Raises LoadTestError.

        ca_file: trusted certificates; default: those of the system.
        """
        parts = urlsplit(url)
        try:
            port = parts.port or PORTS.get(parts.scheme, 0)
        except ValueError:
            port = 0
        is_web_socket = parts.scheme in ("ws", "wss")
        if not parts.hostname or not port or (parts.path.strip("/") and not is_web_socket):
            raise LoadTestError(f"{url}: no broker's address; use mqtt://HOST:PORT, or mqtts://, ws:// or wss://")
        tls = _context(ca_file, is_verified) if parts.scheme in ("mqtts", "wss") else None
        return cls(parts.hostname, port, parts.scheme, parts.path or "/mqtt" if is_web_socket else "", tls)

    def layer(self) -> DeviceLayer | None:
        """A layer for one connection; None for plain TCP."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        uri = f"{self.scheme}://{host}:{self.port}{self.path}"
        if self.tls is None:
            return DeviceWebSocket(uri) if self.scheme == "ws" else None
        tls = DeviceTls(self.tls, self.host)
        return DeviceTlsWebSocket(tls, DeviceWebSocket(uri)) if self.scheme == "wss" else tls


def _context(ca_file: Path | None, is_verified: bool) -> ssl.SSLContext:
    """Read results. Raises LoadTestError."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise LoadTestError(f"{ca_file}: {error.strerror or error}; --ca takes a file of certificates (PEM)") from None
    if not is_verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
