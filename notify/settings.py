"""The settings of a store's side of the wire, and of events. The command fills them in; nothing here reads them.

Each field's metadata holds its line of documentation (`doc`) and, where there is one, what the
command checks: the range (`at_least`, `at_most`) or the form (`pattern`; `shape` is what people are told).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from notify.links.address import PATTERN, SHAPE

KIB = 1024
MOST_OF_ONE = 1_029  # what one message counts as at most, with a topic of 65,535 bytes
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class WireSettings:
    listen: str = field(
        default="tcp://127.0.0.1:7700",
        metadata={
            "doc": "Where `penstock store` listens for gateways and clients; port 0 takes a free one.",
            "shape": SHAPE,
            "pattern": PATTERN,
        },
    )
    advertise: str = field(
        default="",
        metadata={
            "doc": "Address by which message ids name this store; empty: the one at which a client reached it.",
            "shape": "IP:PORT",
            "pattern": r"(?:(\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\]):\d{1,5})?",
        },
    )
    token: str = field(
        default="",
        metadata={
            "doc": "What a gateway or a client has to show where its role has no token of its own; without any token "
            "everybody is let in as either.",
            "secret": "whole",
        },
    )
    token_file: Path | None = field(
        default=None,
        metadata={"doc": "File that holds the token, in place of `token`."},
    )
    gateway_token: str = field(
        default="",
        metadata={"doc": "What a gateway has to show, and nothing else lets one in.", "secret": "whole"},
    )
    gateway_token_file: Path | None = field(
        default=None,
        metadata={"doc": "File that holds it, in place of `gateway_token`."},
    )
    client_token: str = field(
        default="",
        metadata={
            "doc": "What a client (the SDK, Spark, commands) has to show, and nothing else lets one in.",
            "secret": "whole",
        },
    )
    client_token_file: Path | None = field(
        default=None,
        metadata={"doc": "File that holds it, in place of `client_token`."},
    )
    operator_token: str = field(
        default="",
        metadata={"doc": "What an operator has to show; empty lets nobody in as one.", "secret": "whole"},
    )
    operator_token_file: Path | None = field(
        default=None,
        metadata={"doc": "File that holds it, in place of `operator_token`."},
    )
    namespace_tokens_file: Path | None = field(
        default=None,
        metadata={"doc": "File with a line NAMESPACE TOKEN for each namespace whose clients are let into it alone."},
    )
    tls_certificate: Path | None = field(
        default=None,
        metadata={"doc": "PEM file with the certificate, and those that vouch for it, of a tls:// address."},
    )
    tls_key: Path | None = field(
        default=None,
        metadata={"doc": "PEM file with the private key of that certificate."},
    )
    tls_client_ca_file: Path | None = field(
        default=None,
        metadata={"doc": "PEM file of who vouches for certificates of peers; unset: peers are not asked for any."},
    )
    tls_client_certificates: Literal["required", "optional"] = field(
        default="required",
        metadata={"doc": "Where peers are asked for certificates: whether one without is let in (optional)."},
    )
    tls_roles: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "Names that certificates of a role have, as common or alternative name, * for any characters; a "
            "role that is not named here needs none of them.",
            "shape": "ROLE=NAME",
            "pattern": r"(gateway|client|operator)=.+",
        },
    )
    allow_open_beyond_loopback: bool = field(
        default=False,
        metadata={"doc": "Let other machines connect to the store without a token, or without TLS."},
    )
    heartbeat_ms: int = field(
        default=500,
        metadata={
            "doc": "A side that has said nothing for so long says that it is there.",
            "at_least": 10,
            "at_most": 60_000,
        },
    )
    lease_ms: int = field(
        default=2_000,
        metadata={
            "doc": "A gateway not heard of for so long is gone: its sessions are closed, their wills sent.",
            "at_least": 40,
            "at_most": 600_000,
        },
    )
    client_memory_s: int = field(
        default=3_600,
        metadata={
            "doc": "What a client published last is known for so long, so that what it sends again is stored once.",
            "at_least": 1,
        },
    )
    producer_memory_s: int = field(
        default=30 * 86_400,
        metadata={
            "doc": "The same of a Spark query's sink and of a flow from Kafka, which may be restarted late.",
            "at_least": 1,
        },
    )
    credit_bytes: int = field(
        default=16 * MIB,
        metadata={
            "doc": "Requests that one connection may have without an answer.",
            "at_least": 256 * KIB,
            "at_most": 1_024 * MIB,
        },
    )
    max_frame_bytes: int = field(
        default=4 * MIB,
        metadata={
            "doc": "Largest frame, so also about the largest message, that goes over the wire.",
            "at_least": 256 * KIB,
            "at_most": 512 * MIB,
        },
    )
    max_changes_per_publish: int = field(
        default=3_000,
        metadata={
            "doc": "What one Publish of a client may change: each topic that follows another counts 1, each retained "
            "or delayed message 6, and 64 bytes of its topic 1 more. The SDK and Spark keep to it by themselves.",
            "at_least": MOST_OF_ONE,
            "at_most": 1_000_000,
        },
    )
    handshake_timeout_s: int = field(
        default=5,
        metadata={"doc": "A connection that has not said who it is by then is closed.", "at_least": 1},
    )
    max_connections: int = field(
        default=1_000,
        metadata={"doc": "Connections beyond this are refused.", "at_least": 1},
    )
    unix_socket_mode: Literal["0600", "0660"] = field(
        default="0600",
        metadata={"doc": "Mode of a unix:// address: whether its group may connect too."},
    )


@dataclass(frozen=True, slots=True)
class NotifySettings:
    events: Literal["lookup", "broadcast"] = field(
        default="lookup",
        metadata={
            "doc": "Which gateways are told that a queue grew: lookup, those that watch it; broadcast, all of them.",
        },
    )
    redis_url: str = field(
        default="",
        metadata={
            "doc": "Where the look-up table of who watches what is; empty keeps it in the store's memory.",
            "secret": "credentials",
            "shape": "redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH",
            "pattern": r"|rediss?://[^\s]+|unix:///[^\s]+",
        },
    )
    redis_lease_ms: int = field(
        default=3_000,
        metadata={
            "doc": "How long what a gateway wrote into Redis outlives it; it is renewed three times in this time.",
            "at_least": 300,
            "at_most": 60_000,
        },
    )
