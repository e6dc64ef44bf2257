"""mqtt://[user[:password]@]host[:port], with TLS (mqtts), over WebSocket (ws, wss), or unix:///path"""

from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from penstock.errors import UsageError

DEFAULT_PORT = 1883
PORTS = {"mqtt": DEFAULT_PORT, "mqtts": 8883, "ws": 80, "wss": 443, "unix": 0}
WEBSOCKET_PATH = "/mqtt"

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="mqtt://[USER[:PASSWORD]@]HOST[:PORT]",
        # A password in the environment is not seen by everyone who may run ps.
        envvar="PENSTOCK_URL",
        help="The server; also mqtts://, ws://, wss:// and unix:///PATH.",
    ),
]


ClientId = Annotated[
    str,
    typer.Option("-i", "--client-id", metavar="TEXT", help="Client identifier; without it another one each time."),
]

Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long the server may take to be there.")
]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    host: str
    port: int = DEFAULT_PORT
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    scheme: str = "mqtt"
    path: str = ""  # of a WebSocket, or of a Unix socket

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def is_tls(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")


def parse_url(url: str) -> ServerAddress:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise _not_an_address() from None
    is_websocket, is_unix = parts.scheme in ("ws", "wss"), parts.scheme == "unix"
    path = parts.path if is_websocket or is_unix else parts.path.strip("/")
    if bool(parts.hostname) == is_unix or bool(path) > (is_websocket or is_unix) or parts.query:
        raise _not_an_address()
    if is_unix and not path:
        raise _not_an_address()
    if is_websocket:
        path = path.rstrip("/") or WEBSOCKET_PATH
    username = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return ServerAddress(parts.hostname or "", port, username, password, parts.scheme, path)


def _not_an_address() -> UsageError:
    # The URL itself may hold a password, so it is not repeated.
    return UsageError("--url: not mqtt://[USER[:PASSWORD]@]HOST[:PORT], mqtts://, ws://, wss:// or unix://; correct it")
