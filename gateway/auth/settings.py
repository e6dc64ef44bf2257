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
            "doc": "Accept clients without credentials; without any other setting here, from other machines, too."
        },
    )
    password_file: Path | None = field(
        default=None, metadata={"doc": "File of users and their password hashes; `penstock passwd` writes it."}
    )
    permissions_file: Path | None = field(
        default=None, metadata={"doc": "TOML file with the permissions of users and clients, by topic."}
    )
    client_certificates: bool = field(
        default=False,
        metadata={"doc": "A verified client certificate authenticates the user that it names."},
    )
    client_ids: str = field(
        default="",
        metadata={
            "doc": "Client identifiers that a user may take: %u is the user's name, * any characters; empty: all. "
            "With `%u:*` each belongs to one user; with another separator, to the known user with the longest name.",
        },
    )
    namespace_separator: str = field(
        default="",
        metadata={
            "doc": "Separator of namespace and user in a user name, as / in acme/alice; empty: no namespace.",
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
    jwt_keys_url_prefix: str = field(
        default="",
        metadata={
            "doc": "What the names of users begin with whose tokens a key of jwt_keys_url has signed, as sso: in "
            "sso:alice. With a : no name of the password file is one of them.",
        },
    )
    jwt_keys_refresh_s: int = field(
        default=300, metadata={"doc": "Interval at which the keys are fetched from jwt_keys_url.", "at_least": 10}
    )
    jwt_issuer: str = field(default="", metadata={"doc": "Required `iss` of a token; empty: any."})
    jwt_audience: str = field(default="", metadata={"doc": "Required `aud` of a token; empty: any."})
    jwt_leeway_s: int = field(
        default=10,
        metadata={
            "doc": "Allowed difference of clocks when `exp` and `nbf` are checked.",
            "at_least": 0,
            "at_most": 600,
        },
    )
    jwt_require_exp: bool = field(
        default=True, metadata={"doc": "Refuse tokens without `exp`, which would never expire."}
    )
    jwt_user_claim: str = field(default="sub", metadata={"doc": "Claim that names the user."})
    jwt_client_id_claim: str = field(
        default="",
        metadata={"doc": "Claim that, if a token has it, must equal the client identifier; empty: none."},
    )
    jwt_namespace_claim: str = field(
        default="",
        metadata={"doc": "Claim that, if a token has it, names the user's namespace; empty: none."},
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
            "doc": "Address of the hook that decides whether a client may connect; empty: none.",
            **URL,
            "pattern": r"(https?://\S+)?",
        },
    )
    http_permission_url: str = field(
        default="",
        metadata={
            "doc": "Address of the hook that decides what the permissions file leaves open; empty: none.",
            **URL,
            "pattern": r"(https?://\S+)?",
        },
    )
    http_header_file: Path | None = field(
        default=None,
        metadata={"doc": "File with one header line for requests to the hooks, as `Authorization: Bearer ...`."},
    )
    http_timeout_ms: int = field(
        default=2_000, metadata={"doc": "Longest wait for an answer of a hook.", "at_least": 10}
    )
    http_connections: int = field(
        default=16, metadata={"doc": "Requests to hooks at a time; others wait.", "at_least": 1}
    )
    http_max_waiting: int = field(
        default=10_000,
        metadata={"doc": "Requests to hooks, waiting ones included; further ones are refused.", "at_least": 1},
    )
    http_cache_s: int = field(
        default=60,
        metadata={"doc": "How long an answer of the permission hook counts; 0: ask each time.", "at_least": 0},
    )
    http_cache_entries: int = field(
        default=100_000, metadata={"doc": "Cached answers of hooks; the oldest are dropped first.", "at_least": 1}
    )
    http_breaker_failures: int = field(
        default=5,
        metadata={"doc": "Failures in a row after which a hook is not asked for http_breaker_pause_ms.", "at_least": 1},
    )
    http_breaker_pause_ms: int = field(
        default=5_000, metadata={"doc": "Pause after http_breaker_failures; one test request follows.", "at_least": 10}
    )
    max_waiting: int = field(
        default=10_000,
        metadata={
            "doc": "Connections that may wait for authentication; further ones are refused with Server busy.",
            "at_least": 1,
        },
    )
    max_waiting_per_address: int = field(
        default=1_000,
        metadata={
            "doc": "Of these, from one address (IPv6: one /64); after failed logins there, 1/50 of it for one user.",
            "at_least": 1,
        },
    )
    reauthentication_timeout_s: int = field(
        default=30,
        metadata={"doc": "How long a client may take to re-authenticate.", "at_least": 1},
    )
    max_failures: int = field(
        default=10,
        metadata={
            "doc": "Failed logins of a user from one address within failure_window_s; further ones are refused "
            "unheard, unless the password is remembered. 0: no limit.",
            "at_least": 0,
        },
    )
    max_failures_of_address: int = field(
        default=50,
        metadata={"doc": "The same limit for all users from one address (IPv6: one /64).", "at_least": 0},
    )
    max_failures_of_user: int = field(
        default=3_000,
        metadata={
            "doc": "Failed logins of a user within an hour, from any address; further ones are refused unheard except "
            "from addresses with an earlier successful login of the user. 0: no limit.",
            "at_least": 0,
        },
    )
    failure_window_s: int = field(
        default=60, metadata={"doc": "Time in which failed logins are counted; see max_failures.", "at_least": 1}
    )
    ban_failures: int = field(
        default=100,
        metadata={
            "doc": "An address from which so many logins failed or were refused unheard within failure_window_s, "
            "and none succeeded, is banned; 0: no bans.",
            "at_least": 0,
        },
    )
    ban_s: int = field(default=600, metadata={"doc": "How long a ban by ban_failures lasts.", "at_least": 1})
    limit_loopback: bool = field(
        default=False,
        metadata={"doc": "Apply limits and bans by address to this machine's own addresses, too."},
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
    """Whether clients must authenticate."""
    return bool(
        settings.password_file
        or settings.client_certificates
        or settings.jwt_secret_file
        or settings.jwt_keys_file
        or settings.jwt_keys_url
        or settings.http_connect_url
    )


def are_client_ids_bound(settings: AuthSettings) -> bool:
    """Whether no user can take another user's client identifier, by any way of authentication: then rules may
    use `%c`.
    """
    if "%u" in settings.client_ids:
        return True
    others = settings.password_file or settings.client_certificates or settings.http_connect_url
    return bool(settings.jwt_client_id_claim and not others and not settings.allow_anonymous) and is_auth_configured(
        settings
    )


def are_permissions_configured(settings: AuthSettings) -> bool:
    return bool(settings.permissions_file or settings.http_permission_url)
