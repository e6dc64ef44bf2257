"""Connects an operator's command to the store that it operates on."""

from __future__ import annotations

import getpass
import re
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConnectionFailed, PenstockError, UsageError
from penstock.servers.process import OPERATOR_SOCKET

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.store_client import StoreClient

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
MOST_S = 10**10


def connect(settings: Settings, data: Path | None, store: str | None, token_file: Path | None) -> StoreClient:
    """Connect to the server of a data folder on this machine, or to a store at an address. Raises PenstockError."""
    from notify.links.address import StoreAddress
    from penstock.config.credentials import tls_of_gateway, token_of_operator
    from penstock.store_client import StoreClient
    from store.wire.messages import Role

    if data is not None and store is not None:
        raise UsageError("--data names a server on this machine, --store one at an address; give one of them")
    url = store or (settings.gateway.store if data is None else None)
    if url is not None:
        wire = settings.wire if token_file is None else replace(settings.wire, operator_token_file=token_file)
        address = StoreAddress.parse(url)
        token = token_of_operator(wire)
        try:
            return StoreClient(address, token, tls_of_gateway(address, settings.gateway), Role.OPERATOR)
        except ConnectionFailed as error:
            hint = "" if token else "; give the store's wire.operator_token with --token-file"
            raise ConnectionFailed(f"{error}{hint}") from None
    folder = data or settings.store.data
    path = (folder / OPERATOR_SOCKET).absolute()
    if not path.exists():
        raise ConnectionFailed(
            f"{folder}: no server runs on this data folder; name that of one that runs with --data DIR, or a store "
            "with --store URL"
        )
    try:
        return StoreClient(StoreAddress(f"unix://{path}", path=str(path)), "", None, Role.OPERATOR)
    except ConnectionFailed as error:
        raise ConnectionFailed(f"{error}; run this as the user of the server, on its machine") from None


def who() -> str:
    """The operator's user and host name, for the audit log."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def seconds_of(text: str) -> int:
    """Seconds in 30s, 15m, 2h, 7d or 4w. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,10})([smhdw])", text.strip())
    if found is None or not 0 < int(found[1]) * SECONDS[found[2]] <= MOST_S:
        raise UsageError(f"{text!r} is no length of time; write it as 30s, 15m, 2h, 7d or 4w")
    return int(found[1]) * SECONDS[found[2]]


def time_of(unix_ms: int) -> str | None:
    """A time for tables and JSON; None for 0."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="seconds") if unix_ms else None


def check_found(found: bool, what: str, see: str) -> None:
    if not found:
        raise PenstockError(f"there is no {what}; see `{see}`")
