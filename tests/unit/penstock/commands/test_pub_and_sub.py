"""`penstock pub` and `penstock sub` as scripts see them, against Debian's mosquitto."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from penstock import cli
from penstock.commands.mqtt.address import DEFAULT_URL, AddressParts, ServerAddress, parse_url, server_address
from penstock.commands.mqtt.topics import check_topic_filter, check_topic_name
from penstock.errors import UsageError
from store.errors import StoreError
from store.version import VERSION
from tests.conftest import StartMosquitto
from tests.support.server_process import ROOT

TIMEOUT_S = 20
CONNACK = b"\x20\x03\x00\x00\x00"
CONNACK_RECEIVE_MAXIMUM_2 = b"\x20\x06\x00\x00\x03\x21\x00\x02"
SUBACK_SECOND_NOT_AUTHORIZED = b"\x90\x05\x00\x01\x00\x00\x87"
DISCONNECT_SHUTTING_DOWN = b"\xe0\x02\x8b\x00"
DENY_ALL = "user nobody\ntopic read nothing\n"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", *arguments]


def run(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        cwd=ROOT,
        env=environment | (env or {}),
    )


def one_line_error(result: subprocess.CompletedProcess[bytes], exit_code: int) -> str:
    assert result.returncode == exit_code, result
    text = result.stderr.decode()
    assert text.count("\n") == 1, text
    assert text.startswith("penstock: ")
    return text.strip()


class Sub:
    """A running `penstock sub` that has its subscription: it has printed a retained marker."""

    def __init__(self, url: str, *arguments: str) -> None:
        marked = run("pub", "ready", "-m", "ready", "-r", "-q", "1", "--url", url)
        assert marked.returncode == 0, marked
        self.process = subprocess.Popen(
            command("sub", "ready", *arguments, "--url", url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().endswith(b"ready\n")

    def output(self) -> bytes:
        return self.process.communicate(timeout=TIMEOUT_S)[0]


@pytest.fixture
def url(mosquitto_port: int) -> str:
    return f"mqtt://127.0.0.1:{mosquitto_port}"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://broker", ServerAddress("broker")),
        ("mqtt://broker:1884/", ServerAddress("broker", 1884)),
        ("mqtt://[::1]:1884", ServerAddress("::1", 1884)),
        ("mqtt://me:p%40ss@broker", ServerAddress("broker", 1883, "me", "p@ss")),
        ("mqtt://me@broker", ServerAddress("broker", 1883, "me", None)),
        ("mqtts://broker", ServerAddress("broker", 8883, scheme="mqtts")),
        ("ws://broker:8080", ServerAddress("broker", 8080, scheme="ws", path="/mqtt")),
        ("wss://me:p%40ss@broker/other/", ServerAddress("broker", 443, "me", "p@ss", "wss", "/other")),
        ("unix:///run/penstock", ServerAddress("", 0, scheme="unix", path="/run/penstock")),
    ],
)
def test_urls(url: str, address: ServerAddress) -> None:
    assert parse_url(url) == address
    assert "p@ss" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "broker",
        "http://broker",
        "unix://",
        "unix://b/c",
        "wss://",
        "mqtts://b/topic",
        "ws://b/?a=1",
        "mqtt://",
        "mqtt://b:x",
        "mqtt://b/topic",
        "mqtt://[b",
    ],
)
def test_a_wrong_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(UsageError, match=r"^--url: not mqtt://\[USER"):
        parse_url(url)


def test_topics_and_filters() -> None:
    for topic_filter in ("a", "/", "+", "#", "a/+/b", "a/#", "$share/g/a/+"):
        check_topic_filter(topic_filter)
    for topic_filter in ("", "a+", "a/#/b", "#a", "a\0", "x" * 65_536, "\udcff"):
        with pytest.raises(UsageError, match=r"^filter "):
            check_topic_filter(topic_filter)
    for topic_name in ("", "a/+", "#"):
        with pytest.raises(UsageError, match=r"^topic "):
            check_topic_name(topic_name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "t"),
        ("pub", "t", "-m", "x", "-n"),
        ("pub", "t", "-m", "x", "-l"),
        ("pub", "t/#", "-m", "x"),
        ("pub", "t", "-m", "x", "--url", "tcp://127.0.0.1"),
        ("sub", "a/#/b"),
        ("serve", "--flush", "fast"),
        ("store", "inspect", "/no/such/folder"),
    ],
)
def test_asked_wrongly_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    one_line_error(run(*arguments), 2)


@pytest.mark.parametrize("arguments", [("pub",), ("sub",), ("pub", "t", "-m", "x", "-q", "3"), ("sub", "t", "-C", "0")])
def test_invalid_arguments_end_with_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode == 2


def test_a_host_that_cannot_be_is_named() -> None:
    for host in ("a..b", "no-such-host.invalid"):
        error = one_line_error(run("sub", "t", "--url", f"mqtt://{host}"), 1)
        assert error.startswith(f"penstock: mqtt://{host}:1883: ")


def test_connection_refused_names_the_address_and_the_remedy(free_port: int) -> None:
    for arguments in (("pub", "t", "-m", "x"), ("sub", "t")):
        error = one_line_error(run(*arguments, "--url", f"mqtt://127.0.0.1:{free_port}"), 1)
        assert f"mqtt://127.0.0.1:{free_port}: Connection refused; start one" in error


def test_a_missing_file_is_named(url: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert str(missing) in one_line_error(run("pub", "t", "-f", str(missing), "--url", url), 1)


def test_print_config_shows_what_is_in_force() -> None:
    env = {"PENSTOCK_FLUSH": "async"}
    shown = run("serve", "--listen", "mqtt://127.0.0.1:0", "--print-config", env=env)
    assert shown.returncode == 0
    assert b'flush = "async"' in shown.stdout
    assert b'listen = ["mqtt://127.0.0.1:0"]' in shown.stdout


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_messages_arrive_whole_and_in_order(url: str, tmp_path: Path, qos: str) -> None:
    sub = Sub(url, "t/#", "-q", qos, "-C", "3005")
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    lines = b"".join(b"%d\n" % n for n in range(3_000))
    for source, stdin in (
        (("-m", "ü"), b""),
        (("-f", str(binary)), b""),
        (("-f", "-"), b"two\nlines"),
        (("-n",), b""),
        (("-l",), lines),
    ):
        sent = run("pub", "t/a", *source, "-q", qos, "--url", url, stdin=stdin)
        assert (sent.returncode, sent.stdout, sent.stderr) == (0, b"", b"")
    expected = "ü\n".encode() + bytes(range(256)) + b"\n" + b"two\nlines\n" + b"\n" + lines
    assert sub.output() == expected
    assert sub.process.returncode == 0


def test_verbose_prints_the_topic_and_retained_messages_come_first(url: str) -> None:
    run("pub", "t/ä", "-m", "kept", "-r", "-q", "1", "--url", url)
    assert run("sub", "t/+", "-v", "-C", "1", "--url", url).stdout == "t/ä kept\n".encode()
    assert run("pub", "t/ä", "-n", "-r", "-q", "1", "--url", url).returncode == 0
    sub = Sub(url, "t/+", "-v", "-C", "2")
    run("pub", "t/new", "-m", "x", "--url", url)
    assert sub.output() == b"t/new x\n"


def test_a_refused_publish_fails(start_mosquitto: StartMosquitto, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text(DENY_ALL)
    url = f"mqtt://127.0.0.1:{start_mosquitto(f'acl_file {acl}')}"
    lines = run("pub", "t", "-l", "-q", "1", "--url", url, stdin=b"1\n2\n")
    assert "refused 2 of 2 messages to 't': Not authorized" in one_line_error(lines, 1)


def test_a_refused_connection_says_why(start_mosquitto: StartMosquitto, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch()
    port = start_mosquitto(f"allow_anonymous false\npassword_file {passwords}")
    url = f"mqtt://me:secret@127.0.0.1:{port}"
    error = one_line_error(run("sub", "t", env={"PENSTOCK_URL": url}), 1)
    assert f"mqtt://127.0.0.1:{port}: refused the connection: Not authorized; give a user" in error
    assert "secret" not in error


def test_ctrl_c_ends_an_endless_sub_quietly(url: str) -> None:
    sub = Sub(url)
    sub.process.send_signal(signal.SIGINT)
    stdout, stderr = sub.process.communicate(timeout=TIMEOUT_S)
    assert (sub.process.returncode, stdout, stderr) == (0, b"", b"")


def test_a_closed_pipe_ends_sub(url: str) -> None:
    sub = Sub(url, "t")
    assert sub.process.stdout is not None
    sub.process.stdout.close()
    run("pub", "t", "-m", "x", "--url", url)
    assert sub.process.wait(TIMEOUT_S) == 1
    assert sub.process.stderr is not None
    assert sub.process.stderr.read() == b""
    sub.process.stderr.close()


class ScriptedServer:
    """Accepts one connection, answers whatever it hears with the next reply, and keeps it."""

    def __init__(self, replies: list[bytes]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self._replies = replies
        self.heard = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(1)
            self.heard = connection.recv(65_536)
            for reply in self._replies:
                connection.sendall(reply)
                self._hear_more(connection)

    def _hear_more(self, connection: socket.socket) -> None:
        with contextlib.suppress(TimeoutError):
            self.heard += connection.recv(65_536)

    def close(self) -> None:
        self._thread.join(TIMEOUT_S)
        self._listener.close()


@pytest.fixture
def scripted_server(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    server = ScriptedServer(request.param)
    yield server
    server.close()


@pytest.mark.parametrize("scripted_server", [[CONNACK]], indirect=True)
def test_from_travels_as_a_user_property(scripted_server: ScriptedServer) -> None:
    result = run("sub", "a/#", "--from", "-1h", "--url", scripted_server.url)
    assert "connection lost" in one_line_error(result, 1)
    assert b"\x26\x00\x0dpenstock-from\x00\x03-1h" in scripted_server.heard


@pytest.mark.parametrize("scripted_server", [[]], indirect=True)
def test_a_server_that_hangs_up_is_not_one(scripted_server: ScriptedServer) -> None:
    result = run("pub", "t", "-m", "x", "--url", scripted_server.url)
    assert "closed without an answer" in one_line_error(result, 1)


@pytest.mark.parametrize("scripted_server", [[CONNACK_RECEIVE_MAXIMUM_2, b"", b""]], indirect=True)
def test_messages_in_flight_stay_below_the_receive_maximum(scripted_server: ScriptedServer) -> None:
    result = run("pub", "t", "-l", "-q", "1", "--url", scripted_server.url, stdin=b"x\n" * 9)
    assert "(2 of 2 messages not acknowledged)" in one_line_error(result, 1)
    assert len(re.findall(rb"\x00\x01t..\x00x", scripted_server.heard)) == 2


@pytest.mark.parametrize("scripted_server", [[CONNACK, SUBACK_SECOND_NOT_AUTHORIZED]], indirect=True)
def test_a_refused_subscription_is_named(scripted_server: ScriptedServer) -> None:
    error = one_line_error(run("sub", "x", "y/z", "--url", scripted_server.url), 1)
    assert "refused the subscription to 'y/z': Not authorized" in error


@pytest.mark.parametrize("scripted_server", [[CONNACK, DISCONNECT_SHUTTING_DOWN]], indirect=True)
def test_disconnect_reason_of_the_server_is_shown(scripted_server: ScriptedServer) -> None:
    error = one_line_error(run("sub", "t", "--url", scripted_server.url), 1)
    assert "closed the connection: Server shutting down" in error


def test_the_options_of_mosquittos_programs(mosquitto_port: int) -> None:
    where = ["-h", "localhost", "-p", str(mosquitto_port)]
    for options in (["-t", "o/1", "-m", "x", "-i", "me"], ["--topic", "o/2", "-s", "--id", "me"]):
        done = run("pub", *where, *options, "-r", "-q", "1", stdin=b"two\nlines")
        assert done.returncode == 0, done
    for options in (["-t", "o/1", "-t", "o/2"], ["o/1", "--topic", "o/2"]):
        found = run("sub", "--host", "localhost", "--port", str(mosquitto_port), *options, "-C", "2", "-v")
        assert sorted(found.stdout.splitlines()) == [b"lines", b"o/1 x", b"o/2 two"]


@pytest.mark.parametrize(
    ("url", "parts", "address"),
    [
        (DEFAULT_URL, AddressParts("b", 1884), ServerAddress("b", 1884)),
        ("ws://a:80/x", AddressParts("b"), ServerAddress("b", 80, scheme="ws", path="/x")),
        ("mqtt://u:p@a", AddressParts(port=7, password="q"), ServerAddress("a", 7, "u", "q")),
        (DEFAULT_URL, AddressParts(username="u", password="q"), ServerAddress("127.0.0.1", 1883, "u", "q")),
        (DEFAULT_URL, AddressParts(unix="/s"), ServerAddress("", 0, scheme="unix", path="/s")),
    ],
)
def test_options_replace_parts_of_the_url(url: str, parts: AddressParts, address: ServerAddress) -> None:
    assert server_address(url, parts) == address


def test_options_of_tls_mean_mqtts_as_with_mosquitto() -> None:
    with_port = AddressParts("b", 1884)
    assert server_address(DEFAULT_URL, AddressParts("b"), True) == ServerAddress("b", 8883, scheme="mqtts")
    assert server_address(DEFAULT_URL, with_port, True) == ServerAddress("b", 1884, scheme="mqtts")
    assert server_address("mqtt://a", with_port, True) == ServerAddress("b", 1884)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["pub", "-m", "x"], "give one topic"),
        (["pub", "a", "-t", "b", "-m", "x"], "give one topic"),
        (["pub", "a", "-s", "-n"], "give exactly one of"),
        (["sub"], "give a topic filter"),
        (["sub", "a", "-P", "x"], "give -u"),
        (["sub", "a", "--unix", "/s", "-p", "1"], "leave out -h and -p"),
        (["sub", "a", "--url", "unix:///s", "-h", "b"], "give one or the other"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], why: str) -> None:
    assert why in one_line_error(run(*arguments), 2)


def test_the_version() -> None:
    said = [run(option).stdout for option in ("version", "--version")]
    assert said[0] == said[1] == f"penstock {VERSION}\n".encode()
    assert b"\n  version " in run("--help").stdout


def test_errors_of_the_packages_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> NoReturn:
        raise StoreError("store: broken; repair it")

    monkeypatch.setattr(cli, "app_for", fail)
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 1
    assert capsys.readouterr().err == "penstock: store: broken; repair it\n"
