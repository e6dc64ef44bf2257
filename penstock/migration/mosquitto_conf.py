"""mosquitto.conf and its file of rules, as mosquitto.conf(5) describes them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import UsageError

OF_A_LISTENER = frozenset(
    [
        "bind_address",
        "bind_interface",
        "cafile",
        "capath",
        "certfile",
        "ciphers",
        "ciphers_tls1.3",
        "crlfile",
        "dhparamfile",
        "http_dir",
        "keyfile",
        "max_connections",
        "max_topic_alias",
        "max_topic_alias_broker",
        "maximum_qos",
        "mount_point",
        "protocol",
        "psk_hint",
        "require_certificate",
        "socket_domain",
        "tls_engine",
        "tls_engine_kpass_sha1",
        "tls_keyform",
        "tls_version",
        "use_identity_as_username",
        "use_subject_as_username",
        "use_username_as_clientid",
        "websockets_headers_size",
        "websockets_origin",
        "accept_protocol_versions",
    ]
)
OF_A_BRIDGE = frozenset(
    [
        "address",
        "addresses",
        "bridge_alpn",
        "bridge_attempt_unsubscribe",
        "bridge_bind_address",
        "bridge_cafile",
        "bridge_capath",
        "bridge_certfile",
        "bridge_identity",
        "bridge_insecure",
        "bridge_keyfile",
        "bridge_max_packet_size",
        "bridge_max_topic_alias",
        "bridge_outgoing_retain",
        "bridge_protocol_version",
        "bridge_psk",
        "bridge_receive_maximum",
        "bridge_reload_type",
        "bridge_require_ocsp",
        "bridge_session_expiry_interval",
        "bridge_tcp_keepalive",
        "bridge_tls_version",
        "cleansession",
        "clientid",
        "idle_timeout",
        "keepalive_interval",
        "local_cleansession",
        "local_clientid",
        "local_password",
        "local_username",
        "notification_topic",
        "notifications",
        "notifications_local_only",
        "password",
        "remote_clientid",
        "remote_password",
        "remote_username",
        "restart_timeout",
        "round_robin",
        "start_type",
        "threshold",
        "try_private",
        "username",
    ]
)
BRIDGE = "connection"
LOCAL_PORT = 1883


class ConfLine(NamedTuple):
    """A setting, and where it stands."""

    number: int
    name: str
    value: str


@dataclass(slots=True)
class ConfListener:
    """`listener PORT [ADDRESS]`, or `listener 0 PATH` for a Unix socket, with what is said of it."""

    port: int
    address: str = ""
    settings: dict[str, ConfLine] = field(default_factory=dict)

    def value(self, name: str) -> str:
        line = self.settings.get(name)
        return line.value if line is not None else ""


@dataclass(slots=True)
class ConfBridge:
    """`connection NAME`, with what is said of it."""

    name: str
    number: int
    settings: dict[str, ConfLine] = field(default_factory=dict)
    topics: list[ConfLine] = field(default_factory=list)

    def value(self, *names: str) -> str:
        return next((self.settings[name].value for name in names if name in self.settings), "")


@dataclass(slots=True)
class MosquittoConf:
    """A whole file. Of a setting that is there twice the last one counts, as for Mosquitto."""

    settings: dict[str, ConfLine] = field(default_factory=dict)
    listeners: list[ConfListener] = field(default_factory=list)
    bridges: list[ConfBridge] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> MosquittoConf:
        """Raises UsageError with the number of the line."""
        conf = cls()
        listener = ConfListener(LOCAL_PORT)  # of which is said what stands before the first one
        bridge: ConfBridge | None = None
        for line in _lines(text):
            number, name, value = line
            if name == "listener":
                port, _, address = value.partition(" ")
                listener, bridge = ConfListener(_port(line, port), address.strip()), None
                conf.listeners.append(listener)
            elif name == "port":  # the default listener's
                listener.port, bridge = _port(line, value), None
                conf.listeners.append(listener)
            elif name == BRIDGE:
                bridge = ConfBridge(value, number)
                conf.bridges.append(bridge)
            elif bridge is not None and name == "topic":
                bridge.topics.append(line)
            elif bridge is not None and name in OF_A_BRIDGE:
                bridge.settings[name] = line
            elif name in OF_A_LISTENER:
                listener.settings[name] = line
                if listener not in conf.listeners and not conf.listeners and name == "bind_address":
                    listener.address = value
            else:
                conf.settings[name] = line
        if not conf.listeners and listener.address:
            conf.listeners.append(listener)
        return conf

    def value(self, name: str) -> str:
        line = self.settings.get(name)
        return line.value if line is not None else ""

    @property
    def is_local(self) -> bool:
        """Without a listener Mosquitto 2 serves this machine only, and everybody on it."""
        return not self.listeners


class AclRule(NamedTuple):
    """A line of a file of rules: read, write, readwrite or deny. `user`: None for all users (`pattern`), empty for
    anonymous clients."""

    number: int
    user: str | None
    access: str
    topic: str


def acl_rules(text: str) -> list[AclRule]:
    """The rules of an `acl_file`. Raises UsageError with the number of the line."""
    rules: list[AclRule] = []
    user = ""
    for line in _lines(text):
        number, name, value = line
        if name == "user":
            user = value
        elif name in ("topic", "pattern"):
            access, _, topic = value.partition(" ")
            if access not in ("read", "write", "readwrite", "deny") or not topic:
                access, topic = "readwrite", value
            rules.append(AclRule(number, None if name == "pattern" else user, access, topic.strip()))
        else:
            raise UsageError(f"acl_file: line {number}: {name}: neither user, topic nor pattern; correct it first")
    return rules


def user_names(text: str) -> list[str]:
    """The users of a `password_file`."""
    return [line.partition(":")[0] for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _lines(text: str) -> Iterator[ConfLine]:
    for number, line in enumerate(text.splitlines(), 1):
        name, _, value = line.strip().partition(" ")
        if name and not name.startswith("#"):
            yield ConfLine(number, name, value.strip())


def _port(line: ConfLine, text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise UsageError(
            f"line {line.number}: {line.name} {line.value}: {text or 'nothing'} is no port; correct it first"
        )
    return int(text)


def is_true(value: str) -> bool:
    return value.lower() in ("true", "1")


def words(lines: Iterable[ConfLine]) -> str:
    """The names of settings and their lines, for people."""
    return ", ".join(f"{line.name} (line {line.number})" for line in lines)
