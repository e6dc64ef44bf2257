"""The addresses that clients connect to, as `--listen` has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlsplit

from gateway.mqtt.errors import GatewayError
from notify.links.address import is_loopback
from store.namespaces import NAME_PATTERN

SHAPE = (
    "mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT, wss://HOST:PORT or unix:///PATH, each with "
    "?proxy_protocol=2, ?namespace=NAME or ?proxy_protocol=2&namespace=NAME"
)
_QUERY = rf"(?:\?proxy_protocol=2(?:&namespace={NAME_PATTERN})?|\?namespace={NAME_PATTERN})?"
_UNIX_QUERY = rf"(?:\?(?:proxy_protocol=2|fd=\d+)(?:&namespace={NAME_PATTERN})?|\?namespace={NAME_PATTERN})?"
PATTERN = (
    r"(?:mqtts?://(?!.*/mqtt)|wss?://)(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]?]+):(?P<port>\d{1,5})(?:/mqtt)?"
    + _QUERY
    + r"|unix:///[^\s?]+"
    + _UNIX_QUERY
)
"""The form of an address, for people and for the settings. `fd`: a socket that a process inherited, to share it."""

WEBSOCKET_PATH = "/mqtt"


class ListenError(GatewayError):
    """An address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    proxy_protocol: bool = False
    fd: int | None = None
    namespace: str = ""  # of all who connect there

    @classmethod
    def parse(cls, url: str) -> ListenAddress:
        """Raises ListenError."""
        match = re.fullmatch(PATTERN, url)
        if match is None or int(match["port"] or 0) > 65_535:
            raise ListenError(f"{url}: cannot listen there; use {SHAPE}, with port 0 for any free one")
        parts = urlsplit(url)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        fd = int(asked["fd"]) if "fd" in asked else None
        behind_proxy = "proxy_protocol" in asked
        namespace = asked.get("namespace", "")
        if parts.scheme == "unix":
            return cls("unix", path=parts.path, proxy_protocol=behind_proxy, fd=fd, namespace=namespace)
        host, port = parts.hostname or "", parts.port or 0
        return cls(parts.scheme, host, port, proxy_protocol=behind_proxy, namespace=namespace)

    @property
    def is_plain(self) -> bool:
        """True if nothing lies between a socket and its Connection."""
        return not (self.is_tls or self.is_websocket or self.proxy_protocol)

    @property
    def is_tls(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect there."""
        return bool(self.path) or is_loopback(self.host)

    def at_port(self, port: int) -> ListenAddress:
        return replace(self, port=port)

    def __str__(self) -> str:
        asked = {
            "fd": self.fd,
            "proxy_protocol": 2 if self.proxy_protocol else None,
            "namespace": self.namespace or None,
        }
        said = "&".join(f"{name}={value}" for name, value in asked.items() if value is not None)
        query = f"?{said}" if said else ""
        if self.path:
            return f"unix://{self.path}{query}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{WEBSOCKET_PATH if self.is_websocket else ''}{query}"


def check_exposure(addresses: tuple[ListenAddress, ...], is_auth_configured: bool, allow_anonymous: bool) -> None:
    """Refuse to listen beyond loopback without authentication, unless the operator allows it. Raises ListenError."""
    for address in addresses:
        if not (address.is_local or is_auth_configured or allow_anonymous):
            raise ListenError(
                f"{address}: reachable by other machines while no client needs a password; listen on 127.0.0.1, set "
                "auth.password_file (docs/security.md says what else), or auth.allow_anonymous = true"
            )
