"""mosquitto.conf as settings, permissions and flows of Penstock, and what has no counterpart. No I/O.

What would let more clients in, or let them do more, than Mosquitto did is left out and said.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.config.toml_text import toml_value
from penstock.migration.mosquitto_conf import (
    LOCAL_PORT,
    AclRule,
    ConfBridge,
    ConfLine,
    ConfListener,
    MosquittoConf,
    is_true,
    words,
)

Table = dict[str, object]
SECONDS: Final = {"h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}
NUMBERS: Final = {
    "max_inflight_messages": ("gateway", "max_inflight", 65_535),
    "message_size_limit": ("gateway", "maximum_packet_size_bytes", 268_435_460),
    "max_packet_size": ("gateway", "maximum_packet_size_bytes", 268_435_460),
    "max_keepalive": ("gateway", "max_keep_alive_s", 0),
    "sys_interval": ("gateway", "sys_interval_s", 0),
}
"""Setting of Mosquitto, setting here, and what stands for 0 there. All have the same meaning and unit."""
NEEDLESS: Final = frozenset(
    [
        "autosave_interval",
        "autosave_on_changes",
        "persistence",
        "persistence_file",
        "persistence_location",
        "pid_file",
        "user",
        "set_tcp_nodelay",
        "memory_limit",
        "log_dest",
        "log_facility",
        "log_timestamp",
        "log_timestamp_format",
        "log_type",
        "connection_messages",
        "websockets_log_level",
    ]
)
"""What Penstock does in another way: docs/migrating.md says how."""
LEAST_PACKET_BYTES: Final = 1_024
NO_ANONYMOUS_RULES: Final = "rules for anonymous clients alone: here a rule without users is for all"


@dataclass(slots=True)
class Migration:
    """What a mosquitto.conf becomes. `notes`: what has no counterpart, or is to be looked at, a line each."""

    settings: dict[str, Table] = field(default_factory=dict)
    rules: list[Table] = field(default_factory=list)
    has_rules: bool = False
    users: Sequence[str] = ()
    flows: dict[str, Table] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, room: str, name: str, value: object) -> None:
        self.settings.setdefault(room, {})[name] = value


def migrated(conf: MosquittoConf, acl: Sequence[AclRule] | None, users: Sequence[str]) -> Migration:
    """`acl`: the lines of the file of rules, None if there is none; `users`: of the password file."""
    made = Migration(users=users)
    made.put("store", "data", "penstock-data")
    _listeners(conf, made)
    _limits(conf, made)
    _logins(conf, made)
    if acl is not None:
        _permissions(conf, acl, made)
    for bridge in conf.bridges:
        _bridge(bridge, made)
    _left_over(conf, made)
    return made


# --- listeners


def _listeners(conf: MosquittoConf, made: Migration) -> None:
    if conf.is_local:
        made.put("gateway", "listen", [f"mqtt://127.0.0.1:{LOCAL_PORT}"])
        return
    urls, secure = [], []
    for each in conf.listeners:
        protocol = each.value("protocol") or "mqtt"
        if protocol not in ("mqtt", "websockets"):
            made.notes.append(f"listener {each.port}: protocol {protocol} is left out")
            continue
        if each.port == 0:
            urls.append(f"unix://{each.address}")
            continue
        is_tls = bool(each.value("certfile"))
        scheme = ("mqtt", "ws")[protocol == "websockets"] + ("s" if is_tls else "")
        address = each.value("bind_address") or each.address or "0.0.0.0"
        urls.append(f"{scheme}://{f'[{address}]' if ':' in address else address}:{each.port}")
        if is_tls:
            secure.append(each)
        if name := each.value("bind_interface"):
            made.notes.append(
                f"listener {each.port}: bind_interface {name}: write the address of that interface instead"
            )
        if mount := each.value("mount_point"):
            made.notes.append(
                f"listener {each.port}: mount_point {mount}: use a namespace, ?namespace=NAME after the URL"
            )
        if each.value("maximum_qos") not in ("", "2"):
            made.notes.append(f"listener {each.port}: maximum_qos: write max_qos into the rules of permissions.toml")
    made.put("gateway", "listen", urls)
    if secure:
        _tls(secure, made)
    most = {each.value("max_connections") for each in conf.listeners} - {"", "-1"}
    if most:
        made.put("gateway", "listener_max_connections", max(map(int, most)))
        if len(most) > 1 or any(not each.value("max_connections") for each in conf.listeners):
            made.notes.append("max_connections: one number counts for each listener here; the largest was taken")


def _tls(secure: Sequence[ConfListener], made: Migration) -> None:
    first = secure[0]
    for theirs, ours in (("certfile", "tls_certificate"), ("keyfile", "tls_key")):
        made.put("gateway", ours, first.value(theirs))
    if is_true(first.value("require_certificate")):
        made.put("gateway", "tls_client_certificates", "required")
        made.put("gateway", "tls_client_ca_file", first.value("cafile"))
        if crl := first.value("crlfile"):
            made.put("gateway", "tls_client_crl_file", crl)
        if is_true(first.value("use_identity_as_username")):
            made.put("auth", "client_certificates", True)
    names = ("certfile", "keyfile", "cafile", "require_certificate", "use_identity_as_username", "crlfile")
    if any([each.value(name) for name in names] != [first.value(name) for name in names] for each in secure[1:]):
        made.notes.append(f"listeners with TLS have one certificate here: that of listener {first.port} was taken")
    for each in secure:
        for name in ("capath", "ciphers", "ciphers_tls1.3", "tls_version", "dhparamfile", "tls_engine", "psk_hint"):
            if each.value(name):
                made.notes.append(
                    f"listener {each.port}: {name}: no counterpart: TLS 1.2 and 1.3 with OpenSSL's ciphers"
                )
        if is_true(each.value("use_subject_as_username")):
            made.notes.append(
                f"listener {each.port}: use_subject_as_username: no counterpart: a user is the common name, or with "
                'gateway.tls_user_name = "san" the first alternative name'
            )


# --- limits and logins


def _limits(conf: MosquittoConf, made: Migration) -> None:
    for theirs, (room, ours, if_zero) in NUMBERS.items():
        if value := conf.value(theirs):
            number = _number(conf.settings[theirs], made)
            if number is not None:
                number = number or if_zero
                is_packet = ours == "maximum_packet_size_bytes"
                made.put(room, ours, max(number, LEAST_PACKET_BYTES) if is_packet else number)
                if theirs == "message_size_limit":
                    made.notes.append(
                        f"message_size_limit {value}: here the limit is of a whole packet, topic included"
                    )
    if is_true(conf.value("queue_qos0_messages")):
        made.put("gateway", "queue_qos0", True)
    if expiry := conf.value("persistent_client_expiration"):
        found = re.fullmatch(r"(\d+)([hdwmy])", expiry)
        if found is None:
            made.notes.append(f"persistent_client_expiration {expiry}: not understood")
        else:
            made.put("gateway", "max_session_expiry_s", int(found[1]) * SECONDS[found[2]])
    else:  # Mosquitto keeps them for ever
        made.put("gateway", "max_session_expiry_s", 4_294_967_294)


def _number(line: ConfLine, made: Migration) -> int | None:
    if line.value.isdecimal():
        return int(line.value)
    made.notes.append(f"line {line.number}: {line.name} {line.value}: not a number")
    return None


def _logins(conf: MosquittoConf, made: Migration) -> None:
    named = conf.value("allow_anonymous")
    if is_true(named) if named else conf.is_local:
        made.put("auth", "allow_anonymous", True)
    if conf.value("password_file"):
        made.put("auth", "password_file", "passwords")
        made.notes.append(
            f"password_file: Mosquitto's hashes are of no use here: give {len(made.users)} users their passwords with "
            "`penstock passwd passwords USER`, or all from a file with `penstock passwd passwords --import CSV`"
        )
    if prefix := conf.value("clientid_prefixes"):
        made.put("auth", "client_ids", f"{prefix}*")
    if is_true(conf.value("per_listener_settings")):
        made.notes.append("per_listener_settings: logins and permissions are the same at each listener here")
    if any(name in conf.settings for name in ("plugin", "auth_plugin")):
        made.notes.append(
            "plugin: see auth.http_connect_url, auth.http_permission_url and auth.jwt_* for logins elsewhere"
        )


# --- permissions


def _permissions(conf: MosquittoConf, acl: Sequence[AclRule], made: Migration) -> None:
    made.has_rules = True
    made.put("auth", "permissions_file", "permissions.toml")
    has_users = bool(conf.value("password_file")) or "client_certificates" in made.settings.get("auth", {})
    left_out: list[str] = []
    for rule in (*(each for each in acl if each.access == "deny"), *(each for each in acl if each.access != "deny")):
        if rule.user == "" and has_users:
            left_out.append(f"line {rule.number}")
            continue
        if "%c" in rule.topic:
            made.notes.append(
                f"acl_file: line {rule.number}: {rule.topic}: a client chooses its identifier, so %c needs "
                'auth.client_ids = "%u" or the like; this rule is left out. Write %u where users are named as devices'
            )
            continue
        users = {"users": [rule.user]} if rule.user else {}
        made.rules.append({**users, **_actions(rule), "topics": [rule.topic]})
    if left_out:
        made.notes.append(f"acl_file: {', '.join(left_out)}: {NO_ANONYMOUS_RULES}; left out")
    if any(each.access in ("read", "readwrite") for each in acl):
        made.notes.append(
            "acl_file: Mosquitto lets everybody subscribe and judges each message; here a subscription is refused "
            "unless a rule covers all of it: clients have to subscribe to what they may read, and to no more"
        )


def _actions(rule: AclRule) -> Table:
    reading, writing = ["subscribe", "replay"], ["publish", "retain"]
    if rule.access == "deny":
        return {"deny": [*writing, *reading]}
    return {"allow": [*(writing if "write" in rule.access else ()), *(reading if "read" in rule.access else ())]}


# --- bridges


def _bridge(bridge: ConfBridge, made: Migration) -> None:
    address = (bridge.value("address", "addresses") or "").split()
    if not address:
        made.notes.append(f"connection {bridge.name} (line {bridge.number}): it has no address; left out")
        return
    if len(address) > 1:
        made.notes.append(f"connection {bridge.name}: a flow has one address; {address[0]} was taken")
    is_tls = bool(bridge.value("bridge_cafile", "bridge_capath", "bridge_certfile"))
    host, _, port = address[0].partition(":")
    url = f"mqtt{'s' * is_tls}://{host}{f':{port}' if port else ''}"
    for number, topic in enumerate(bridge.topics, 1):
        for flow in _flows_of(bridge, topic, url, made):
            name = re.sub(r"[^a-z0-9-]+", "-", bridge.name.lower()).strip("-") or "bridge"
            name += ("-out" if "://" in str(flow["to"]) else "-in") + (f"-{number}" if len(bridge.topics) > 1 else "")
            made.flows[name] = flow
            if ca := bridge.value("bridge_cafile"):
                made.flows[name]["ca_file"] = ca
    if bridge.value("remote_password", "password"):
        made.notes.append(
            f"connection {bridge.name}: its password is not written here: set {_variable(bridge)} where the flows run"
        )
    known = {"address", "addresses", "remote_username", "username", "remote_password", "password", "bridge_cafile"}
    known |= {"remote_clientid", "clientid", "cleansession", "try_private", "bridge_protocol_version"}
    rest = [line for name, line in bridge.settings.items() if name not in known]
    if rest:
        made.notes.append(f"connection {bridge.name}: no counterpart: {words(rest)}")


def _flows_of(bridge: ConfBridge, topic: ConfLine, url: str, made: Migration) -> Iterator[Table]:
    """`topic PATTERN [DIRECTION [QOS [LOCAL REMOTE]]]`; \"\" is an empty prefix."""
    pattern, direction, qos, local, remote = (*topic.value.split(), *("",) * 5)[:5]
    pattern, local, remote = (each.replace('""', "") for each in (pattern, local, remote))
    where = f"connection {bridge.name}: line {topic.number}: topic {topic.value}"
    if direction not in ("", "out", "in", "both"):
        made.notes.append(f"{where}: {direction} is no direction; left out")
        return
    login = {"mqtt": _login(bridge, qos)}
    if qos == "2":
        made.notes.append(f"{where}: a flow from a broker comes at QoS 1; ids keep messages of flows from coming twice")
    if direction in ("", "out", "both"):
        flow: Table = {"from": local + pattern, "to": url, "format": "raw"}
        if local != remote:
            if local:
                made.notes.append(f"{where}: add map.topic: it is to put {remote!r} in place of {local!r}")
            elif remote.endswith("/"):
                flow["to"] = f"{url}/{remote[:-1]}"
            else:
                flow["map"] = {"topic": f"{remote}{{topic}}"}
        yield flow | login
    if direction in ("in", "both"):
        flow = {"from": f"{url}/{remote}{pattern}", "to": "penstock:"}
        if local != remote:
            if remote:
                made.notes.append(f"{where}: add map.topic: it is to put {local!r} in place of {remote!r}")
            else:
                flow["map"] = {"topic": f"{local}{{topic}}"}
        yield flow | login


def _login(bridge: ConfBridge, qos: str) -> Table:
    login: Table = {}
    if user := bridge.value("remote_username", "username"):
        login["user"] = user
    if bridge.value("remote_password", "password"):
        login["password"] = {"env": _variable(bridge)}
    if client_id := bridge.value("remote_clientid", "clientid"):
        login["id"] = client_id
    if bridge.value("bridge_protocol_version") in ("mqttv311", "mqttv31"):
        login["version"] = "3.1.1"
    if qos in ("0", "2"):
        login["qos"] = int(qos)
    return login


def _variable(bridge: ConfBridge) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", f"{bridge.name}_PASSWORD".upper())


# --- the rest


def _left_over(conf: MosquittoConf, made: Migration) -> None:
    done = {
        *NUMBERS,
        *NEEDLESS,
        "queue_qos0_messages",
        "persistent_client_expiration",
        "allow_anonymous",
        "password_file",
    }
    done |= {"acl_file", "clientid_prefixes", "per_listener_settings", "plugin", "auth_plugin"}
    if conf.value("persistence_location"):
        made.notes.append(
            "persistence: everything is kept, in store.data. What mosquitto.db has is not read: let clients connect "
            "once, and have a bridge bring the retained messages"
        )
    rest = [line for name, line in conf.settings.items() if name not in done]
    if rest:
        made.notes.append(f"no counterpart, left out: {words(rest)}")


# --- text


def _plain(text: str) -> str:
    """For a comment, which may have no control characters."""
    return "".join(each if each.isprintable() else "?" for each in text)


def files(made: Migration, source: str) -> dict[str, str]:
    """The files that a migration makes, by name; penstock.toml is the first."""
    lines = [f"# Made from {source} by `penstock migrate`.", *(f"# Look at: {_plain(note)}" for note in made.notes)]
    for room, settings in made.settings.items():
        lines += ["", f"[{room}]", *(f"{name} = {toml_value(value)}" for name, value in settings.items())]
    if made.users:
        lines += ["", "# Users that need a password here:"]
        lines += [f"#   penstock passwd passwords {_plain(shlex.quote(each))}" for each in made.users]
    found = {"penstock.toml": "\n".join(lines) + "\n"}
    if made.has_rules:
        lines = ["# The first rule that matches decides; docs/security.md.", 'default = "deny"']
        for rule in made.rules:
            lines += ["", "[[rule]]", *(f"{name} = {toml_value(value)}" for name, value in rule.items())]
        found["permissions.toml"] = "\n".join(lines) + "\n"
    if made.flows:
        lines = ["# penstock serve --config penstock.toml --flows flows.toml; docs/flows.md."]
        for name, flow in made.flows.items():
            lines += ["", f"[flow.{name}]", *(f"{key} = {toml_value(value)}" for key, value in flow.items())]
        found["flows.toml"] = "\n".join(lines) + "\n"
    return found
