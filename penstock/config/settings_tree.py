"""The tree of settings, and every leaf of it as a `Setting` that knows what it allows.

The packages' dataclasses are the only place where a setting is written down. What the command
accepts, `--print-config` and docs/settings.md all come from here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from gateway.access.quota_settings import QuotaSettings
from gateway.auth.settings import AuthSettings
from gateway.settings import GatewaySettings
from notify.links.address import without_credentials
from notify.settings import NotifySettings, WireSettings
from penstock.config.audit_settings import AuditSettings
from penstock.config.cluster_settings import ClusterSettings
from penstock.config.console_settings import ConsoleSettings
from penstock.config.flows_settings import FlowsSettings
from penstock.config.tier_settings import TierSettings
from penstock.config.tracing_settings import TracingSettings
from store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class Settings:
    store: StoreSettings = field(default_factory=StoreSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    quota: QuotaSettings = field(default_factory=QuotaSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    tier: TierSettings = field(default_factory=TierSettings)
    flows: FlowsSettings = field(default_factory=FlowsSettings)
    admin: str | None = field(
        default=None,
        metadata={
            "doc": "Address of the admin endpoint (health, metrics); unset means none.",
            "shape": "HOST:PORT",
            "pattern": r"(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):(?P<port>\d{1,5})",
        },
    )
    allow_admin_beyond_loopback: bool = field(
        default=False,
        metadata={"doc": "Let other machines ask the admin endpoint, which wants no password."},
    )
    allow_open_files: bool = field(
        default=False,
        metadata={"doc": "Take files with secrets that other users of the machine can read or write to."},
    )
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="info", metadata={"doc": "The least severe log lines that are written."}
    )
    log_format: Literal["text", "json"] = field(
        default="text",
        metadata={"doc": "text for people; json, one object per line, for collectors."},
    )


# Settings that have a flag, and a short environment name beside the full one.
FLAGS = {
    "store.data": "data",
    "gateway.listen": "listen",
    "store.flush": "flush",
    "gateway.store": "store",
    "admin": "admin",
    "log_level": "log_level",
    "log_format": "log_format",
}


WORDS = {
    **dict.fromkeys(("true", "yes", "on", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "off", "f", "n", "0"), False),
}
"""How people say a bool in the environment."""


class NotAllowed(ValueError):
    """A value that a setting does not allow. The text names the allowed values."""


@dataclass(frozen=True, slots=True)
class Setting:
    path: str
    """The name for users: `store.flush`."""
    annotation: Any
    default: object
    limits: Mapping[str, Any]
    """The field's metadata: `doc` and, where given, `at_least`, `at_most`, `shape`, `pattern`, `secret`."""

    @property
    def doc(self) -> str:
        return str(self.limits["doc"])

    def shown(self, value: object) -> str | None:
        """The value without its secrets; None if it has none. Host and path of a URL are not secret."""
        what = self.limits.get("secret")
        if what == "whole" and value not in ("", None):
            return "***"
        if what == "credentials" and isinstance(value, str) and without_credentials(value) != value:
            return without_credentials(value)
        return None

    def _quoted(self, value: object) -> str:
        """The value in a complaint. Where credentials are refused, one that is not allowed may have them."""
        if self.limits.get("secret") == "refused" and isinstance(value, str):
            return repr(without_credentials(value))
        return self.shown(value) or repr(value)

    @property
    def flag(self) -> str | None:
        name = FLAGS.get(self.path)
        return name and "--" + name.replace("_", "-")

    @property
    def environment_names(self) -> tuple[str, ...]:
        full = "PENSTOCK_" + self.path.replace(".", "__").upper()
        short = FLAGS.get(self.path)
        if short is None or f"PENSTOCK_{short.upper()}" == full:
            return (full,)
        return (f"PENSTOCK_{short.upper()}", full)

    @property
    def kind(self) -> Any:
        """The annotation without its `| None`."""
        if NoneType not in get_args(self.annotation):
            return self.annotation
        return next(arm for arm in get_args(self.annotation) if arm is not NoneType)

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def allowed(self) -> str:
        return f"a list of {self._allowed_item}" if self.is_list else self._allowed_item

    @property
    def _allowed_item(self) -> str:
        if get_origin(self.kind) is Literal:
            return "one of " + ", ".join(get_args(self.kind))
        if self.kind is int:
            return _describe_range(self.limits.get("at_least"), self.limits.get("at_most"))
        if self.kind is float:
            return f"a number from {self.limits['at_least']} to {self.limits['at_most']}"
        if self.kind is bool:
            return "true or false"
        if self.kind is Path:
            return "a path"
        return str(self.limits.get("shape", "texts" if self.is_list else "a text"))

    def parse(self, raw: object) -> object:
        """The parsed value of `raw`. Raises NotAllowed."""
        if self.is_list and isinstance(raw, str):
            raw = [item.strip() for item in raw.split(",") if item.strip()]
        quoted = self._quoted(raw)
        if isinstance(raw, bool) and self.kind is not bool:
            raise NotAllowed(f"{quoted} is not {self.allowed}")
        if self.kind is bool and isinstance(raw, str):
            raw = WORDS.get(raw.strip().lower(), raw)
        elif self.kind in (int, float) and isinstance(raw, str):
            raw = raw.strip()
        try:
            is_text = isinstance(raw, str)  # then numbers may be texts; but "null" is none
            kind = self.kind if is_text else self.annotation
            value: object = msgspec.convert(raw, kind, strict=not is_text, dec_hook=_path)
        except msgspec.ValidationError:
            raise NotAllowed(f"{quoted} is not {self.allowed}") from None
        for item in value if isinstance(value, tuple) else (value,):
            if not self._within_limits(item):
                raise NotAllowed(f"{self._quoted(item)} is not {self._allowed_item}")
        return value

    def _within_limits(self, item: object) -> bool:
        if isinstance(item, int | float):
            at_least, at_most = self.limits.get("at_least", item), self.limits.get("at_most", item)
            return bool(at_least <= item <= at_most)
        if isinstance(item, str) and "pattern" in self.limits:
            match = re.fullmatch(self.limits["pattern"], item)
            return match is not None and int(match.groupdict().get("port") or 0) <= 65_535
        return True


def _path(kind: type, raw: object) -> object:
    """The only kind that the library does not know. Raises TypeError, which it makes a ValidationError of."""
    if kind is Path and isinstance(raw, str | Path):
        return Path(raw)
    raise TypeError(f"no {kind.__name__}")


def _describe_range(at_least: int | None, at_most: int | None) -> str:
    if at_least is not None and at_most is not None:
        return f"an integer from {at_least} to {at_most}"
    return "an integer" if at_least is None else f"an integer of at least {at_least}"


def _leaves(tree: type, prefix: str = "") -> Iterator[Setting]:
    types = get_type_hints(tree)
    for leaf in fields(tree):
        if is_dataclass(types[leaf.name]):
            yield from _leaves(types[leaf.name], f"{leaf.name}.")
        else:
            yield Setting(prefix + leaf.name, types[leaf.name], _default(leaf), leaf.metadata)


def _default(leaf: Field[Any]) -> object:
    assert leaf.default is not MISSING, f"{leaf.name} needs a default"
    return leaf.default


SECTIONS: dict[str, Callable[..., Any]] = {
    name: section
    for name, section in get_type_hints(Settings).items()
    if isinstance(section, type) and is_dataclass(section)
}
SETTINGS: dict[str, Setting] = {setting.path: setting for setting in _leaves(Settings)}


def section_of(path: str) -> str:
    """`store` for `store.flush`; empty for a setting that belongs to the command itself."""
    return path.rpartition(".")[0]


def build(values: Mapping[str, object]) -> Settings:
    """The tree with these values, by path, in place of its defaults."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, "")}
    for path, value in values.items():
        sections[section_of(path)][path.rpartition(".")[2]] = value
    parts = {name: section(**sections[name]) for name, section in SECTIONS.items()}
    return Settings(**parts, **sections[""])


def value_of(settings: Settings, path: str) -> object:
    section, _, name = path.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, name)
