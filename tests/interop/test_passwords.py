"""Who may come in by a password file, with real servers, sockets and commands."""

import queue
import signal
import socket
import subprocess
import sys
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from gateway.auth.passwords import HASHER, parse_passwords
from gateway.mqtt.packets import ConnAck, PingReq, PingResp, PubAck, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ONE_PROCESS_BY_DAY, ServerFactory, SharedServers
from tests.interop.programs import penstock, run
from tests.support.mqtt_packet_client import Device, reload, until, write_passwords
from tests.support.server_process import PenstockServer

pytestmark = ONE_PROCESS_BY_DAY

VERSIONS = pytest.mark.parametrize("version", [4, 5])


USERS = {"alice": "in wonderland", "bob": "bau"}


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    """That a test may change."""
    return write_passwords(tmp_path / "passwords", USERS)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_passwords(tmp_path_factory.mktemp("users") / "passwords", USERS)


@pytest.fixture
def server(shared_server: SharedServers, fixed: Path) -> PenstockServer:
    return shared_server(settings={"auth.password_file": fixed})


@VERSIONS
def test_the_right_password_lets_in(server: PenstockServer, version: int) -> None:
    for _ in range(2):  # the second time it is remembered
        device = Device(server.port, "d", version)
        assert device.connect("alice", "in wonderland").reason_code is ReasonCode.SUCCESS
        assert device.published("a") is ReasonCode.SUCCESS


@VERSIONS
@pytest.mark.parametrize(
    ("username", "password"), [("alice", "bau"), ("alice", ""), ("alice", None), ("eve", "bau"), ("", "bau")]
)
def test_anything_else_does_not(server: PenstockServer, version: int, username: str, password: str | None) -> None:
    if password is None and version == 4 and username == "":
        return
    device = Device(server.port, "d", version)
    assert device.connect(username, password).reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert device.receive() is None
    assert "refused" in server.log_text()
    assert "bau" not in server.log_text()


@VERSIONS
def test_anonymous_clients_are_refused_unless_allowed(
    server: PenstockServer, version: int, shared_server: SharedServers, fixed: Path
) -> None:
    assert Device(server.port, "d", version).connect().reason_code is ReasonCode.NOT_AUTHORIZED
    other = shared_server(settings={"auth.password_file": fixed, "auth.allow_anonymous": "true"})
    assert Device(other.port, "d", version).connect().reason_code is ReasonCode.SUCCESS
    wrong = Device(other.port, "d", version).connect("alice", "wrong")
    assert wrong.reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD


def test_packets_after_a_connect_wait_for_the_password_check(server: PenstockServer) -> None:
    device = Device(server.port, "d")
    device.send_connect("alice", "in wonderland")
    device.publish("a", b"1", 1)
    device.send(PingReq())
    assert isinstance(device.receive(), ConnAck)
    assert {type(device.receive()) for _ in range(2)} == {PubAck, PingResp}


def test_messages_of_a_refused_client_are_not_stored(server: PenstockServer) -> None:
    good = Device(server.port, "good")
    good.connect("alice", "in wonderland")
    good.subscribe("a")
    evil = Device(server.port, "evil")
    evil.send_connect("alice", "wrong", will=Will("a", b"will"))
    evil.publish("a", b"evil")
    assert evil.closed_with() is None
    good.publish("a", b"good")
    packet = good.receive()
    assert getattr(packet, "payload", None) == b"good"


def test_connections_that_wait_are_bounded(penstock_server: ServerFactory, tmp_path: Path) -> None:
    file = write_passwords(tmp_path / "p", {f"u{i}": "x" for i in range(20)})
    settings = {"auth.password_file": file, "auth.max_waiting": 2, "auth.password_threads": 1}
    server = penstock_server(settings=settings).one_gateway()  # each has a bound of its own
    devices = [Device(server.port, f"d{i}") for i in range(20)]
    for number, device in enumerate(devices):
        device.send_connect(f"u{number}", "x")
    codes = [
        packet.reason_code for device in devices if (packet := device.receive()) and hasattr(packet, "reason_code")
    ]
    assert set(codes) == {ReasonCode.SUCCESS, ReasonCode.SERVER_BUSY}


def test_a_client_that_leaves_while_it_is_judged_leaves_nothing(server: PenstockServer) -> None:
    for number in range(5):
        device = Device(server.port, f"gone-{number}")
        device.send_connect("bob", "bau")
        device.close()
    assert Device(server.port, "d").connect("bob", "bau").reason_code is ReasonCode.SUCCESS
    assert "Traceback" not in server.log_text()


@pytest.mark.topologies("one process", "shared port", "two gateways")
def test_a_reload_lets_in_and_throws_out(penstock_server: ServerFactory, passwords: Path) -> None:
    server = penstock_server(settings={"auth.password_file": passwords})
    alice, bob = Device(server.port, "a"), Device(server.port, "b")
    alice.connect("alice", "in wonderland")
    bob.connect("bob", "bau")
    run(*penstock("passwd", str(passwords), "carol", "--stdin"), stdin=b"new\n")
    run(*penstock("passwd", str(passwords), "bob", "--delete"))
    reload(server)
    assert bob.closed_with() is ReasonCode.NOT_AUTHORIZED
    assert alice.published("a") is ReasonCode.SUCCESS
    until(lambda: Device(server.port, "c").connect("carol", "new").reason_code is ReasonCode.SUCCESS)
    assert Device(server.port, "b").connect("bob", "bau").reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD


def test_a_reload_throws_the_last_user_out(penstock_server: ServerFactory, tmp_path: Path) -> None:
    """A server that took the file for one that is still being written would go on with the user."""
    passwords = tmp_path / "one user"
    run(*penstock("passwd", str(passwords), "alice", "--stdin"), stdin=b"in wonderland\n")
    server = penstock_server(settings={"auth.password_file": passwords})
    alice = Device(server.port, "a")
    alice.connect("alice", "in wonderland")
    run(*penstock("passwd", str(passwords), "alice", "--delete"))
    assert alice.closed_with() is ReasonCode.NOT_AUTHORIZED


@pytest.mark.topologies("one process", "two gateways")
def test_files_are_read_again_when_they_change(penstock_server: ServerFactory, tmp_path: Path, passwords: Path) -> None:
    rules = tmp_path / "rules.toml"
    allow = '[[rule]]\nallow = ["publish"]\ntopics = ["{}/#"]\n'
    rules.write_text(allow.format("a"))
    server = penstock_server(settings={"auth.password_file": passwords, "auth.permissions_file": rules}).one_gateway()
    alice, bob = Device(server.port, "a"), Device(server.port, "b")
    alice.connect("alice", "in wonderland")
    bob.connect("bob", "bau")
    whole = passwords.read_text()
    passwords.write_text(whole[: len(whole) // 2 - 20])  # half of a line is there
    until(lambda: "not reloaded, the old ones stay in force" in server.log_text())
    assert bob.published("a/x") is ReasonCode.SUCCESS
    passwords.write_text(whole)
    run(*penstock("passwd", str(passwords), "bob", "--delete"))  # takes the file's place
    assert bob.closed_with() is ReasonCode.NOT_AUTHORIZED
    rules.write_text(allow.format("b"))
    until(lambda: alice.published("b/x") is ReasonCode.SUCCESS)
    assert alice.published("a/x") is ReasonCode.NOT_AUTHORIZED


@pytest.mark.topologies("one process")
def test_a_file_that_others_can_read_is_refused(penstock_server: ServerFactory, passwords: Path) -> None:
    passwords.chmod(0o644)
    with pytest.raises(
        RuntimeError, match=f"{passwords}: every user of this machine can read it; chmod go= {passwords}"
    ):
        penstock_server(settings={"auth.password_file": passwords})
    assert penstock_server(settings={"auth.password_file": passwords, "allow_open_files": True}).port
    run(*penstock("passwd", str(passwords), "carol", "--stdin"), stdin=b"new\n")
    server = penstock_server(settings={"auth.password_file": passwords, "gateway.listen": "mqtt://0.0.0.0:0"})
    assert (
        "passwords and tokens of clients cross the network in the clear there; listen on mqtts://" in server.log_text()
    )
    passwords.chmod(0o642)
    server.signal(signal.SIGHUP)
    until(lambda: "every user of this machine can write to it" in server.log_text())


def test_a_reload_of_a_damaged_file_changes_nothing(penstock_server: ServerFactory, passwords: Path) -> None:
    server = penstock_server(settings={"auth.password_file": passwords})
    passwords.write_text("alice:plain text\n")
    server.signal(signal.SIGHUP)
    until(lambda: "not reloaded" in server.log_text())
    assert f"{passwords}: line 1: " in server.log_text()
    assert Device(server.port, "d").connect("alice", "in wonderland").reason_code is ReasonCode.SUCCESS


@pytest.mark.mqtt("MQTT-3.1.3-8")
def test_client_identifiers_are_the_users_own(penstock_server: ServerFactory, passwords: Path) -> None:
    server = penstock_server(settings={"auth.password_file": passwords, "auth.client_ids": "%u-*"})
    assert Device(server.port, "bob-1").connect("bob", "bau").reason_code is ReasonCode.SUCCESS
    assert Device(server.port, "alice-1").connect("bob", "bau").reason_code is ReasonCode.NOT_AUTHORIZED
    assert Device(server.port, "").connect("bob", "bau").reason_code is ReasonCode.SUCCESS


def test_without_authentication_other_machines_are_refused_in_one_line(tmp_path: Path) -> None:
    command = penstock("serve", "--data", str(tmp_path / "data"), "--listen", "mqtt://0.0.0.0:0")
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"auth.password_file" in done.stderr


def test_the_command_keeps_the_other_lines(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.write_text("# ours\n\n")
    run(*penstock("passwd", str(file), "a", "--stdin"), stdin=b"1\n")
    run(*penstock("passwd", str(file), "b", "--stdin"), stdin=b"2\n")
    first = file.read_text()
    run(*penstock("passwd", str(file), "a", "--stdin"), stdin=b"3\n")
    assert file.read_text().splitlines()[0] == "# ours"
    assert file.read_text().splitlines()[3] == first.splitlines()[3]
    assert file.read_text().splitlines()[2] != first.splitlines()[2]
    assert [each.name for each in tmp_path.iterdir()] == ["passwords"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (("a:b", "--stdin"), b"x\n", 1),
        (("a", "--stdin"), b"\n", 2),
        (("a",), b"", 2),
        (("a", "--delete"), b"", 2),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], stdin: bytes, code: int) -> None:
    run(*penstock("passwd", str(tmp_path / "p"), *arguments), stdin=stdin, code=code)
    assert not (tmp_path / "p").exists()


def test_many_users_at_once(tmp_path: Path) -> None:
    file, table = tmp_path / "passwords", tmp_path / "users.csv"
    file.write_text("# ours\n")
    run(*penstock("passwd", str(file), "old", "--stdin"), stdin=b"before\n")
    table.write_text('name,password\nold,"after, all"\ndevice-1,geheim\n\n"device-2",x,scram\n')
    done = run(*penstock("passwd", str(file), "--import", str(table)))
    assert b"geheim" not in done
    lines = file.read_text().splitlines()
    assert lines[0] == "# ours"
    assert [line.partition(":")[0] for line in lines[1:]] == ["old", "device-1", "device-2"]
    known = parse_passwords(file.read_text())
    assert HASHER.verify(known["old"].argon2, "after, all")
    assert known["device-2"].scram
    assert not known["device-1"].scram
    assert file.stat().st_mode & 0o007 == 0
    run(*penstock("passwd", str(file), "--import", "-"), stdin=b"device-3,y\n")
    assert run(*penstock("passwd", str(file), "--list")).split() == [b"old", b"device-1", b"device-2", b"device-3"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,geheim\nb\n", "line 2: has 1 fields"),
        ("a,geheim\na,x\n", "line 2: user a is in a line above"),
        ("a,\n", "line 1: the password of a is empty"),
        ("a:b,geheim\n", "line 1: 'a:b'"),
        ("a,geheim,maybe\n", "line 1: the third field"),
        ('a,"geheim\n', "not CSV"),
        ("", "names no user"),
    ],
)
def test_an_import_that_is_wrong_changes_nothing(tmp_path: Path, text: str, complaint: str) -> None:
    table = tmp_path / "users.csv"
    table.write_text(text)
    command = penstock("passwd", str(tmp_path / "p"), "--import", str(table))
    done = subprocess.run(command, capture_output=True, timeout=30, check=False, text=True)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "geheim" not in done.stdout + done.stderr
    assert not (tmp_path / "p").exists()


def test_a_half_open_connection_is_not_judged(server: PenstockServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(b"\x10")
        assert Device(server.port, "d").connect("alice", "in wonderland").reason_code is ReasonCode.SUCCESS


def test_mosquitto_pub_with_a_password(server: PenstockServer) -> None:
    port = ("-p", str(server.port))
    run("mosquitto_pub", *port, "-t", "a", "-m", "x", "-u", "alice", "-P", "in wonderland", "-q", "1")
    run("mosquitto_pub", *port, "-t", "a", "-m", "x", "-u", "alice", "-P", "wrong", "-q", "1", code=4)


def type_at_terminal(command: list[str], *lines: str) -> tuple[int, str]:
    """Run a command that asks at its terminal; its exit code, and what could be seen there."""
    script = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:-1])
seen = b""
for line in sys.argv[-1].split("|"):
    asked = seen.count(b": ")
    while seen.count(b": ") == asked:
        seen += os.read(terminal, 1024)
    os.write(terminal, line.encode() + b"\\n")
try:
    while data := os.read(terminal, 1024):
        seen += data
except OSError:
    pass
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *command, "|".join(lines)], capture_output=True, timeout=30, check=False
    )
    return done.returncode, done.stdout.decode()


def test_at_a_terminal_the_password_is_asked_for_twice_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    code, seen = type_at_terminal(penstock("passwd", str(file), "alice"), "geheim", "geheim")
    assert code == 0, seen
    assert "geheim" not in seen
    code, seen = type_at_terminal(penstock("passwd", str(file), "bob"), "geheim", "anders")
    assert code == 2
    assert "two passwords" in seen
    assert list(parse_passwords(file.read_text())) == ["alice"]


@pytest.mark.parametrize("protocol", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize(("password", "is_let_in"), [("in wonderland", True), ("wrong", False)])
def test_paho(server: PenstockServer, protocol: MQTTProtocolVersion, password: str, is_let_in: bool) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, "paho", protocol=protocol)
    client.username_pw_set("alice", password)
    heard: queue.Queue[bool] = queue.Queue()
    client.on_connect = lambda _client, _data, _flags, reason_code, _properties: heard.put(not reason_code.is_failure)
    client.connect("127.0.0.1", server.port)
    client.loop_start()
    try:
        assert heard.get(timeout=20) is is_let_in
    finally:
        client.disconnect()
        client.loop_stop()
