"""The address of a store as a link uses it. Each user of the client parses its own URLs into one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireAddress:
    """A parsed URL: either the `path` of a Unix socket, or `host` and `port`."""

    url: str
    host: str = ""
    port: int = 0
    path: str = ""
    is_tls: bool = False
