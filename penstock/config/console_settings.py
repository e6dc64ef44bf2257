"""The settings of the console: the HTTP API and the pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    enabled: bool = field(
        default=True,
        metadata={"doc": "Whether `penstock serve` starts the console (HTTP API and pages) beside the broker."},
    )
    listen: str = field(
        default="127.0.0.1:8080+",
        metadata={
            "doc": "Where the console listens; with + behind the port, at the next free one if it is taken; port 0 "
            "takes a free one. Beyond loopback users have to log in.",
            "shape": "HOST:PORT or HOST:PORT+",
            "pattern": r"(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):(?P<port>\d{1,5})\+?",
        },
    )
    hosts: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "Names, besides localhost, that browsers may use for the console; others are refused, since "
            "another site could have its name point here.",
            "shape": "HOST or HOST:PORT",
            "pattern": r"[A-Za-z0-9._-]{1,253}(:(?P<port>\d{1,5}))?",
        },
    )
    proxies: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "Addresses of reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.",
            "shape": "IP addresses or networks",
            "pattern": r"[0-9A-Fa-f:.]+(/\d{1,3})?",
        },
    )
    allow_open_beyond_loopback: bool = field(
        default=False,
        metadata={"doc": "Allow requests from other machines although the store does not authenticate users."},
    )
    tls_certificate: Path | None = field(
        default=None,
        metadata={"doc": "PEM file with the certificate of the console; with it the console speaks HTTPS."},
    )
    tls_key: Path | None = field(default=None, metadata={"doc": "PEM file with the private key of that certificate."})
    max_connections: int = field(
        default=1_000,
        metadata={
            "doc": "Connections to the console. A further one ends one without a request, or gets the status 503.",
            "at_least": 1,
        },
    )
    max_connections_per_address: int = field(
        default=250,
        metadata={
            "doc": "The same of one address (IPv6: /64 network). Those of console.proxies have no such bound.",
            "at_least": 1,
        },
    )
    head_s: int = field(
        default=10,
        metadata={"doc": "Within so many seconds the head of a request has to come.", "at_least": 1, "at_most": 3_600},
    )
    body_s: int = field(
        default=30,
        metadata={"doc": "Within so many seconds its body has to come.", "at_least": 1, "at_most": 3_600},
    )
    max_users: int = field(
        default=100,
        metadata={
            "doc": "Users connected to the store by the console at a time; each address of a user counts.",
            "at_least": 1,
        },
    )
    max_streams: int = field(
        default=100,
        metadata={"doc": "Streams (server-sent events, NDJSON) that are open at a time.", "at_least": 1},
    )
    max_streams_per_user: int = field(
        default=25,
        metadata={
            "doc": "The same of one user, or of one address where users have no name.",
            "at_least": 1,
        },
    )
    max_pops: int = field(
        default=500,
        metadata={
            "doc": "Requests for messages of consumer groups that are answered, or wait, at a time.",
            "at_least": 1,
        },
    )
    max_pops_per_user: int = field(
        default=100,
        metadata={
            "doc": "The same of one user, or of one address where users have no name.",
            "at_least": 1,
        },
    )
    max_pop_wait_s: int = field(
        default=30,
        metadata={
            "doc": "They wait so many seconds at most, whatever they say; a reverse proxy has to wait for longer.",
            "at_most": 30,
        },
    )
    max_body_bytes: int = field(
        default=8 * MIB,
        metadata={"doc": "The largest body of a request.", "at_least": 1_024, "at_most": 64 * MIB},
    )
    max_page: int = field(
        default=1_000,
        metadata={"doc": "Messages or rows of one page at most.", "at_least": 1, "at_most": 10_000},
    )
    stuck_s: int = field(
        default=300,
        metadata={
            "doc": "A group with messages in flight, of which nothing was acknowledged for so many seconds, stands "
            "still; the overview looks back as long for groups that fall behind, failed logins and a slow disk.",
            "at_least": 1,
            "at_most": 86_400,
        },
    )
    oidc_issuer: str = field(
        default="",
        metadata={
            "doc": "Issuer of an OpenID Connect provider by which users log in, as its tokens name it; empty: none. "
            "Needs `pip install penstock[oidc]`, and auth.jwt_keys_url, jwt_issuer and jwt_audience at the store.",
            "shape": "https://...",
            "pattern": r"(https?://[^\s?#]+)?",
        },
    )
    oidc_client_id: str = field(default="", metadata={"doc": "The console's client id at the provider."})
    oidc_client_secret_file: Path | None = field(
        default=None,
        metadata={"doc": "File with the console's client secret there; without it the console is a public client."},
    )
    oidc_scopes: tuple[str, ...] = field(
        default=("openid",), metadata={"doc": "Scopes to ask the provider for.", "shape": "words, one of them openid"}
    )
    oidc_name: str = field(default="single sign-on", metadata={"doc": "What the page of logins calls the provider."})
    sample_s: int = field(
        default=10,
        metadata={
            "doc": "How often the console keeps a sample of the server's figures, in seconds. It keeps 8,640 of them, "
            "which are a day at 10 s.",
            "at_least": 1,
            "at_most": 3_600,
        },
    )
    session_s: int = field(
        default=43_200,
        metadata={"doc": "Lifetime of a login on the page, in seconds.", "at_least": 60, "at_most": 31_536_000},
    )
