"""The sockets that clients connect to."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from gateway.broker import Broker
from gateway.connection import Connection
from gateway.errors import GatewayError
from notify.address import is_loopback

BACKLOG = 4096


class ListenError(GatewayError):
    """An address cannot be listened on."""


def parse_listen(url: str) -> tuple[str, int]:
    """Host and port of `mqtt://HOST:PORT`. Raises ListenError."""
    parts = urlsplit(url)
    if parts.scheme != "mqtt" or not parts.hostname or parts.port is None:
        raise ListenError(f"{url}: cannot listen there; use mqtt://HOST:PORT, with port 0 for any free one")
    return parts.hostname, parts.port


def check_exposure(urls: tuple[str, ...], allowed: bool) -> None:
    """Nothing listens beyond loopback without authentication unless the operator says so. Raises ListenError."""
    for url in urls:
        if not allowed and not is_loopback(parse_listen(url)[0]):
            raise ListenError(
                f"{url}: reachable by other machines while no client needs a password; listen on 127.0.0.1, "
                "set auth.password_file (docs/security.md says what else), or auth.allow_anonymous = true"
            )


async def listen(broker: Broker, url: str) -> tuple[asyncio.Server, str]:
    """Accept clients on `url`; returns the server and the URL with the port it got. Raises ListenError."""
    host, port = parse_listen(url)
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: Connection(broker),  # type: ignore[arg-type, return-value]
            host,
            port,
            backlog=BACKLOG,
            reuse_port=broker.settings.reuse_port or None,
        )
    except (OSError, socket.gaierror) as error:
        reason = error.strerror or str(error)
        raise ListenError(f"{url}: cannot listen there ({reason}); stop what uses it or choose another port") from error
    bound = server.sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return server, f"mqtt://{shown}:{bound}"
