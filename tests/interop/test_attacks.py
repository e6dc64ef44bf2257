"""The attacks of an audit, which must fail. docs/security.md lists all of it, with the tests elsewhere."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import signal
import socket
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Publish, PubRec, PubRel, QoS, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ServerFactory, SharedServers
from tests.support.mqtt_byte_client import connect as raw_connect
from tests.support.mqtt_byte_client import publish as raw_publish
from tests.support.mqtt_packet_client import Device, reload, until, write_passwords, write_secret
from tests.support.server_process import PenstockServer

OK, BAD = ReasonCode.SUCCESS, ReasonCode.BAD_USER_NAME_OR_PASSWORD
SECRET = "a secret of more than thirty-two bytes, for tokens"
FOREVER = 9_999_999_999
MIB = 1 << 20


def megabytes(server: PenstockServer) -> float:
    return float(psutil.Process(server.process.pid).memory_info().rss) / MIB


def works(server: PenstockServer) -> None:
    """A message goes from one client to another."""
    reader, writer = Device(server.port, "reader"), Device(server.port, "writer")
    assert reader.connect().reason_code is OK
    reader.subscribe("works")
    assert writer.connect().reason_code is OK
    assert writer.published("works", b"!") is OK
    assert reader.next(Publish).payload == b"!"


# --- tokens


def text_of(part: object) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(header: Any, claims: Any = None, secret: str = SECRET) -> str:
    """Signed by hand, since libraries refuse to."""
    text = f"{text_of(header)}.{text_of(claims or {'sub': 'admin', 'exp': FOREVER})}"
    return f"{text}.{text_of(hmac.digest(secret.encode(), text.encode(), hashlib.sha256))}"


@pytest.fixture
def token_server(shared_server: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> PenstockServer:
    keys = tmp_path_factory.getbasetemp() / "held-keys.json"
    named = {"kty": "oct", "kid": "ours", "k": text_of(SECRET.encode()), "alg": "HS256"}
    write_secret(keys, json.dumps({"keys": [named]}))
    return shared_server(settings={"auth.jwt_keys_file": keys})


OWN_KEY = "a key that the attacker has chosen, as long as the other"
OWN_JWK = {"kty": "oct", "k": text_of(OWN_KEY.encode()), "alg": "HS256", "kid": "ours"}


@pytest.mark.parametrize(
    "password",
    [
        token({"alg": "HS256", "kid": "ours"}, secret=OWN_KEY),
        token({"alg": "HS256", "kid": "ours", "jwk": OWN_JWK}, secret=OWN_KEY),
        token({"alg": "HS256", "kid": "ours", "jku": "http://127.0.0.1:1/keys"}, secret=OWN_KEY),
        token({"alg": "HS256", "kid": "ours", "x5u": "http://127.0.0.1:1/chain"}, secret=OWN_KEY),
        token({"alg": "HS256", "kid": "ours", "x5c": [text_of(b"a certificate")]}, secret=OWN_KEY),
        token({"alg": "HS256", "kid": "../../../../dev/null"}, secret=""),
        token({"alg": "HS256", "kid": "/dev/null"}),
        token({"alg": "HS256", "kid": "ours' OR '1'='1"}),
        token({"alg": "HS256", "kid": ["ours"]}),
        token({"alg": "HS256", "kid": 0}),
        token({"alg": ["HS256"], "kid": "ours"}),
        token({"alg": "none", "kid": "ours"}),
        token({"alg": "nOnE"}, secret=""),
        token({"alg": "HS384", "kid": "ours"}),
        token({"alg": "HS256", "kid": "ours", "crit": ["unheard-of"], "unheard-of": True}),
        token({"alg": "HS256", "kid": "ours", "crit": ["exp"]}),
        token({"alg": "HS256", "kid": "ours", "b64": False, "crit": ["b64"]}),
        token({"alg": "HS256", "kid": "ours"}, b"no JSON"),
        token({"alg": "HS256", "kid": "ours"}, ["sub", "admin"]),
        token(b"{" * 500),
        token(["alg", "HS256"]),
        token({"alg": "HS256", "kid": "ours"}).rpartition(".")[0] + ".",
        token({"alg": "HS256", "kid": "ours"}) + "." + text_of(b"one part more"),
        token({"alg": "HS256", "kid": "ours"}) + "=",
    ],
)
def test_a_token_names_neither_its_key_nor_its_rules(token_server: PenstockServer, password: str) -> None:
    assert Device(token_server.port, "d").connect("admin", password).reason_code is BAD


def test_the_token_that_those_are_made_from_is_good(token_server: PenstockServer) -> None:
    for header in ({"alg": "HS256", "kid": "ours"}, {"alg": "HS256", "kid": "ours", "x5u": "http://127.0.0.1:1/"}):
        assert Device(token_server.port, "d").connect("admin", token(header)).reason_code is OK


# --- files at a reload


def as_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def as_nowhere(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.with_name("nowhere"))


def as_endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def with_(data: bytes) -> Any:
    return lambda file: file.write_bytes(data)


@pytest.mark.parametrize(
    "broken",
    [
        Path.unlink,
        as_directory,
        as_fifo,
        as_nowhere,
        as_endless,
        with_(b"\0\xff\xfe" * 1_000),
        with_(b"x" * 100_000),
        with_(b"[[rule]]\nallow = [" * 1_000),
        with_(b"alice:$argon2id$v=19$m=4294967295,t=4294967295,p=1$AAAA$AAAA\n" * 2),
    ],
    ids=["gone", "directory", "fifo", "dangling", "endless", "binary", "long", "half", "absurd"],
)
def test_files_that_are_broken_at_a_reload_change_nothing(
    penstock_server: ServerFactory, tmp_path: Path, broken: Any
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["own/%u/#"]\n')
    passwords = write_passwords(tmp_path / "passwords", {"alice": "right"})
    server = penstock_server(settings={"auth.password_file": passwords, "auth.permissions_file": rules})
    online = Device(server.port, "online")
    assert online.connect("alice", "right").reason_code is OK
    for file in (passwords, rules):
        kept = file.read_bytes()
        broken(file)
        failures = server.log_text().count(str(file))
        server.signal(signal.SIGHUP)
        until(lambda: server.log_text().count(str(file)) > failures)  # noqa: B023
        assert online.published("own/alice/t") is OK
        assert online.published("own/bob/t") is ReasonCode.NOT_AUTHORIZED
        assert Device(server.port, "d").connect("alice", "right").reason_code is OK
        assert Device(server.port, "d").connect("alice", "wrong").reason_code is BAD
        if file.is_dir():
            file.rmdir()
        file.unlink(missing_ok=True)
        write_secret(file, kept.decode())
        reload(server)


# --- names that clients choose: in the log, the metrics, and the names of files

EVIL = (
    "x\nERROR forged: all is well",
    "x\r\n2026-01-01 00:00:00 INFO penstock: forged",
    "\x1b[2J\x1b[31mforged",
    'x"} 1\npenstock_forged_total{a="',
    "../../../../tmp/forged",
    "..",
    "/etc/passwd",
    "C:\\forged",
    "%s%s%n{0.__class__}",
    "\u202eforged\u2028x",
    "a" * 250,
)


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def kinds(names: set[str]) -> set[str]:
    """Without the numbers in them, and what RocksDB calls its own."""
    return {re.sub(r"\d+", "N", name) for name in names if not name.startswith("index/")}


def test_no_name_gets_into_the_log_the_metrics_or_a_path(penstock_server: ServerFactory, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "allow"\n[[rule]]\ndeny = ["publish"]\ntopics = ["no/#"]\n')
    server = penstock_server(
        settings={"auth.permissions_file": rules, "admin": "127.0.0.1:0", "gateway.sys_interval_s": 1}
    )
    works(server)
    before, beside = files_below(server.data), files_below(tmp_path)
    for name in EVIL:
        device = Device(server.port, name)
        will = Will(name, b"", QoS.AT_LEAST_ONCE)
        said = device.connect(name, name, will=will, session_expiry_interval=100, clean_start=False).reason_code
        if said is not OK:
            continue
        device.subscribe(name, 1)
        device.subscribe(f"$share/{name.replace('/', '.')}/{name}", 1)
        device.subscribe(name, history=name)
        device.publish(name, name.encode(), 1, retain=True, user_properties=((name, name),), content_type=name)
        device.publish(f"no/{name}", b"", 1)
        device.publish(f"$delayed/1/{name}", b"", 1)
        with suppress(OSError):
            device._socket.sendall(raw_publish(b"bad/+/" + name.encode()))  # refused, with a line in the log
            device.closed_with()
    with socket.create_connection(("127.0.0.1", server.port)) as other:
        other.sendall(b"GET /../../etc/passwd HTTP/1.1\r\n\r\n")
    works(server)
    log = server.log_text()
    assert not re.search(r"^(ERROR|2026-01-01|penstock_forged)", log, re.MULTILINE)
    assert "\x1b" not in log
    assert "\u202e" not in log
    found = re.search(r"^admin (http://\S+)$", log, re.MULTILINE)
    assert found
    with urllib.request.urlopen(f"{found[1]}/metrics", timeout=20) as answer:
        page = answer.read().decode()
    families = list(text_string_to_metric_families(page))
    assert all(
        sample.name.startswith(("penstock_", "process_", "python_")) for each in families for sample in each.samples
    )
    assert not [each for each in families if "forged" in each.name]
    added = {re.sub(r"\d+", "N", name) for name in files_below(tmp_path) - beside if "/index/" not in name}
    assert not [name for name in added if "forged" in name or ".." in name]
    assert kinds(files_below(server.data)) - kinds(before) <= {"audit.jsonl", "checkpoint"}
    server.restart()  # and all of it is read again
    works(server)


# --- floods


def test_three_thousand_silent_connections(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.connect_timeout_s": 3})
    works(server)
    before = megabytes(server)
    silent = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(3_000)]
    works(server)
    assert megabytes(server) - before < 30
    for each in (silent[0], silent[-1]):
        assert each.recv(1) == b""  # closed without a word
    works(server)
    for each in silent:
        each.close()


def test_sixty_thousand_topics_of_one_client(penstock_server: ServerFactory) -> None:
    server = penstock_server(flush="async")
    works(server)
    before = megabytes(server)
    with socket.create_connection(("127.0.0.1", server.port), 20) as client:
        client.sendall(raw_connect(b"many"))
        assert client.recv(100)[:1] == b"\x20"
        client.sendall(b"".join(raw_publish(b"many/%d/topic" % number, b"x") for number in range(60_000)))
        works(server)
        client.sendall(b"\xc0\0")
        assert client.recv(2) == b"\xd0\0"
    assert megabytes(server) - before < 250
    works(server)


@pytest.mark.parametrize("version", [4, 5])
def test_a_flood_of_qos_2_without_an_end(penstock_server: ServerFactory, version: int) -> None:
    """Messages that are never released, the same ones again, and releases of what never was."""
    server = penstock_server(flush="async", settings={"gateway.receive_maximum": 100})
    works(server)
    before = megabytes(server)
    properties = b"" if version == 5 else None
    device = Device(server.port, "flood", version)
    assert device.connect().reason_code is OK
    for number in range(1, 101):
        device.publish("q", b"x", 2)
        assert device.next(PubRec).packet_id == number
    again = raw_publish(b"q", b"x", 2, 7, 8, properties)
    device._socket.sendall(again * 1_000)
    assert {device.next(PubRec).packet_id for _ in range(1_000)} == {7}
    device._socket.sendall(b"".join(encode(PubRel(packet_id), version) for packet_id in range(1_000, 60_000)))
    works(server)
    Device(server.port, "flood-2", version).connect()
    with suppress(ConnectionError):
        for number in range(101, 3_000):
            device._socket.sendall(raw_publish(b"q", b"x", 2, number, 0, properties))
    works(server)
    assert megabytes(server) - before < 40
    reader = Device(server.port, "counting")
    reader.connect()
    reader.subscribe("q", history="earliest")
    device.close()
    works(server)


def test_the_gateway_gives_no_token_of_the_store_away(penstock_server: ServerFactory, tmp_path: Path) -> None:
    """A token is in no log, no metric and no --print-config."""
    secret = "a-token-that-must-not-be-seen"
    settings = {"wire.listen": "tcp://127.0.0.1:0", "wire.client_token": secret, "wire.gateway_token": secret + "-2"}
    server = penstock_server(settings={**settings, "admin": "127.0.0.1:0"})
    works(server)
    assert secret not in server.log_text()
    found = re.search(r"^admin (http://\S+)$", server.log_text(), re.MULTILINE)
    assert found
    with urllib.request.urlopen(f"{found[1]}/metrics", timeout=20) as answer:
        assert secret.encode() not in answer.read()
