"""mqtt://[user[:password]@]host[:port]"""

from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from penstock.errors import UsageError

DEFAULT_PORT = 1883

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="mqtt://[USER[:PASSWORD]@]HOST[:PORT]",
        # A password in the environment is not seen by everyone who may run ps.
        envvar="PENSTOCK_URL",
        help="The server.",
    ),
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

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mqtt://{host}:{self.port}"


def parse_url(url: str) -> ServerAddress:
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise _not_an_address() from None
    if parts.scheme != "mqtt" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise _not_an_address()
    username = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return ServerAddress(parts.hostname, port, username, password)


def _not_an_address() -> UsageError:
    # The URL itself may hold a password, so it is not repeated.
    return UsageError("--url: not mqtt://[USER[:PASSWORD]@]HOST[:PORT]; correct it")
