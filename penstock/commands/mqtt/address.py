"""mqtt://[user[:password]@]host[:port], with TLS (mqtts), over WebSocket (ws, wss), or unix:///path

`-h`, `-p`, `-u`, `-P` and `--unix` mean what they mean to Mosquitto's programs. Each replaces a part of the URL.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple
from urllib.parse import unquote, urlsplit

import typer

from penstock.errors import UsageError

DEFAULT_PORT = 1883
PORTS = {"mqtt": DEFAULT_PORT, "mqtts": 8883, "ws": 80, "wss": 443, "unix": 0}
WEBSOCKET_PATH = "/mqtt"
DEFAULT_URL = "mqtt://127.0.0.1:1883"

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

Host = Annotated[str | None, typer.Option("-h", "--host", metavar="HOST", help="The host, in place of the URL's.")]
Port = Annotated[
    int | None, typer.Option("-p", "--port", metavar="PORT", min=1, max=65_535, help="The port, in place of the URL's.")
]
Username = Annotated[str | None, typer.Option("-u", "--username", metavar="USER", help="The user name.")]
GivenPassword = Annotated[
    str | None, typer.Option("-P", "--pw", metavar="PASSWORD", help="The password; others see it in ps.")
]
UnixPath = Annotated[str | None, typer.Option("--unix", metavar="PATH", help="A Unix socket, in place of the URL.")]

ClientId = Annotated[
    str,
    typer.Option(
        "-i", "--id", "--client-id", metavar="TEXT", help="Client identifier; without it another one each time."
    ),
]

Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long the server may take to be there.")
]


class AddressParts(NamedTuple):
    """The parts that options give, as Mosquitto's programs have them; None: the URL's holds."""

    host: str | None = None
    port: int | None = None
    username: str | None = None
    password: str | None = None
    unix: str | None = None


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


def server_address(url: str, parts: AddressParts, has_tls_options: bool = False) -> ServerAddress:
    """The server of a URL and options. Without a URL, options of TLS make it mqtts://. Raises UsageError.

    >>> str(server_address(DEFAULT_URL, AddressParts("broker"), has_tls_options=True))
    'mqtts://broker:8883'
    """
    address = parse_url(url)
    if parts.unix is not None:
        if parts.host is not None or parts.port is not None:
            raise UsageError("--unix: a socket has no host and no port; leave out -h and -p")
        address = replace(address, host="", port=0, scheme="unix", path=parts.unix)
    elif parts.host is not None or parts.port is not None:
        if address.scheme == "unix":
            raise UsageError("-h, -p: --url names a Unix socket; give one or the other")
        if has_tls_options and url == DEFAULT_URL:
            address = replace(address, scheme="mqtts", port=PORTS["mqtts"])
        address = replace(address, host=parts.host or address.host, port=parts.port or address.port)
    if parts.username is not None:
        address = replace(address, username=parts.username)
    if parts.password is not None:
        if address.username is None:
            raise UsageError("-P: a password needs a user name; give -u")
        address = replace(address, password=parts.password)
    return address


def _not_an_address() -> UsageError:
    # The URL itself may hold a password, so it is not repeated.
    return UsageError("--url: not mqtt://[USER[:PASSWORD]@]HOST[:PORT], mqtts://, ws://, wss:// or unix://; correct it")
