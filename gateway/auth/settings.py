"""The settings of authentication. The command fills them in and reads the files that they name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

URL = {"shape": "http://... or https://...", "pattern": r"https?://\S+", "secret": "credentials"}


@dataclass(frozen=True, slots=True)
class AuthSettings:
    allow_anonymous: bool = field(
        default=False,
        metadata={
            "doc": "Let in clients without credentials; without any other setting here, from other machines too."
        },
    )
    password_file: Path | None = field(
        default=None, metadata={"doc": "File of users and their passwords; `penstock passwd` makes it."}
    )
    permissions_file: Path | None = field(
        default=None, metadata={"doc": "TOML file that says who may publish and subscribe to what."}
    )
    client_certificates: bool = field(
        default=False,
        metadata={"doc": "A client with a certificate that the listener verified is the user whom it names."},
    )
    client_ids: str = field(
        default="",
        metadata={
            "doc": "Client identifiers that a user may take: %u is the user's name, * any characters; empty: all. "
            "With `%u:*` each is one user's; with another separator it is the longest known name's.",
        },
    )
    namespace_separator: str = field(
        default="",
        metadata={
            "doc": "What stands between namespace and user in a user's name, as / in acme/alice; empty: it names none.",
            "shape": "one of / @ . \\ |",
            "pattern": r"[/@.\\|]?",
        },
    )
    jwt_secret_file: Path | None = field(
        default=None, metadata={"doc": "File with the secret of tokens signed by HS256, HS384 or HS512."}
    )
    jwt_keys_file: Path | None = field(
        default=None, metadata={"doc": "File with the public keys that verify tokens: a JWKS, or PEM."}
    )
    jwt_keys_url: str = field(
        default="",
        metadata={
            "doc": "Address of a JWKS with the keys that verify tokens; empty: none.",
            **URL,
            "pattern": r"(https?://\S+)?",
        },
    )
    jwt_keys_refresh_s: int = field(
        default=300, metadata={"doc": "How often that address is asked for its keys.", "at_least": 10}
    )
    jwt_issuer: str = field(default="", metadata={"doc": "What a token has to have as `iss`; empty: anything."})
    jwt_audience: str = field(default="", metadata={"doc": "What a token has to have in `aud`; empty: anything."})
    jwt_leeway_s: int = field(
        default=10,
        metadata={
            "doc": "By how much clocks may differ when `exp` and `nbf` are looked at.",
            "at_least": 0,
            "at_most": 600,
        },
    )
    jwt_require_exp: bool = field(
        default=True, metadata={"doc": "Refuse tokens without `exp`, which would be good for ever."}
    )
    jwt_user_claim: str = field(default="sub", metadata={"doc": "Claim that names the user."})
    jwt_client_id_claim: str = field(
        default="",
        metadata={"doc": "Claim that, where a token has it, the client identifier has to equal; empty: none."},
    )
    jwt_namespace_claim: str = field(
        default="",
        metadata={"doc": "Claim that, where a token has it, names the user's namespace; empty: none."},
    )
    jwt_permissions_claim: str = field(
        default="permissions",
        metadata={"doc": "Claim with the user's permissions, in the form of the permissions file."},
    )
    max_client_rules: int = field(
        default=100,
        metadata={
            "doc": "Permission rules that one token, or one answer of the connect hook, may bring.",
            "at_least": 1,
            "at_most": 1_000,
        },
    )
    http_connect_url: str = field(
        default="",
        metadata={
            "doc": "Address that is asked whether a client may connect; empty: none.",
            **URL,
            "pattern": r"(https?://\S+)?",
        },
    )
    http_permission_url: str = field(
        default="",
        metadata={
            "doc": "Address that is asked what the permissions file leaves open; empty: none.",
            **URL,
            "pattern": r"(https?://\S+)?",
        },
    )
    http_header_file: Path | None = field(
        default=None,
        metadata={"doc": "File with one header line that those requests carry, as `Authorization: Bearer ...`."},
    )
    http_timeout_ms: int = field(
        default=2_000, metadata={"doc": "An answer that takes longer counts as none.", "at_least": 10}
    )
    http_connections: int = field(
        default=16, metadata={"doc": "Requests under way at a time; others wait their turn.", "at_least": 1}
    )
    http_max_waiting: int = field(
        default=10_000,
        metadata={"doc": "Requests beyond so many that wait are answered with a refusal.", "at_least": 1},
    )
    http_cache_s: int = field(
        default=60, metadata={"doc": "How long an answer about a permission counts; 0 asks each time.", "at_least": 0}
    )
    http_cache_entries: int = field(
        default=100_000, metadata={"doc": "Answers kept; the oldest go first.", "at_least": 1}
    )
    http_breaker_failures: int = field(
        default=5, metadata={"doc": "After so many failures in a row nobody is asked for a while.", "at_least": 1}
    )
    http_breaker_pause_ms: int = field(
        default=5_000, metadata={"doc": "That while; then one request is tried.", "at_least": 10}
    )
    max_waiting: int = field(
        default=10_000,
        metadata={
            "doc": "Connections that may wait to be judged; further ones are told that the server is busy.",
            "at_least": 1,
        },
    )
    max_waiting_per_address: int = field(
        default=1_000,
        metadata={
            "doc": "Of these, from one address (IPv6: one /64); a fiftieth of one user, once logins failed there.",
            "at_least": 1,
        },
    )
    reauthentication_timeout_s: int = field(
        default=30,
        metadata={"doc": "How long a client may take to authenticate once more.", "at_least": 1},
    )
    max_failures: int = field(
        default=10,
        metadata={
            "doc": "Failed logins of a user from one address within failure_window_s; further ones are refused "
            "unheard, unless the password is remembered. 0: no such limit.",
            "at_least": 0,
        },
    )
    max_failures_of_address: int = field(
        default=50,
        metadata={"doc": "The same for all users from one address (IPv6: one /64).", "at_least": 0},
    )
    max_failures_of_user: int = field(
        default=3_000,
        metadata={
            "doc": "Failed logins of a user within an hour, wherever from; further ones are refused unheard except "
            "from addresses where the user was right before. 0: no such limit.",
            "at_least": 0,
        },
    )
    failure_window_s: int = field(default=60, metadata={"doc": "See max_failures.", "at_least": 1})
    ban_failures: int = field(
        default=100,
        metadata={
            "doc": "An address from which so many logins failed or were refused unheard within failure_window_s, "
            "and none was right, is banned; 0: none is.",
            "at_least": 0,
        },
    )
    ban_s: int = field(default=600, metadata={"doc": "How long such a ban lasts.", "at_least": 1})
    limit_loopback: bool = field(
        default=False,
        metadata={"doc": "Have limits and bans by address hold for this machine's own addresses too."},
    )
    password_threads: int = field(
        default=2, metadata={"doc": "Threads that verify passwords.", "at_least": 1, "at_most": 64}
    )
    password_cache_entries: int = field(
        default=100_000,
        metadata={
            "doc": "Verified passwords remembered in memory, as keyed hashes, so that a reconnection costs little.",
            "at_least": 0,
        },
    )


def is_auth_configured(settings: AuthSettings) -> bool:
    """Whether clients have to show who they are."""
    return bool(
        settings.password_file
        or settings.client_certificates
        or settings.jwt_secret_file
        or settings.jwt_keys_file
        or settings.jwt_keys_url
        or settings.http_connect_url
    )


def are_client_ids_bound(settings: AuthSettings) -> bool:
    """Whether no user can take another one's client identifier, whatever lets him in: rules may say `%c` then."""
    if "%u" in settings.client_ids:
        return True
    others = settings.password_file or settings.client_certificates or settings.http_connect_url
    return bool(settings.jwt_client_id_claim and not others and not settings.allow_anonymous) and is_auth_configured(
        settings
    )


def are_permissions_configured(settings: AuthSettings) -> bool:
    return bool(settings.permissions_file or settings.http_permission_url)
