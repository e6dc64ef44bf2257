"""The audit log of real servers: who came in, was refused, denied, cut off; after a SIGKILL, a SIGHUP, a flood."""

import signal
import socket
from pathlib import Path

import pytest

from gateway.mqtt.packets import ConnAck, Connect, Disconnect
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ServerFactory
from tests.support.audit_lines import audit_files, audit_lines, wait_for_audit
from tests.support.mqtt_packet_client import Device, reload, until, write_passwords
from tests.support.server_process import PenstockServer

IN_SEVERAL_PROCESSES = pytest.mark.topologies("one process", "shared port")

RULES = """
[[rule]]
allow = ["publish", "subscribe"]
topics = ["open/#"]
"""


@pytest.fixture
def server(penstock_server: ServerFactory, tmp_path: Path) -> PenstockServer:
    (tmp_path / "permissions.toml").write_text(RULES)
    write_passwords(tmp_path / "passwords", {"ann": "secret", "bob": "other"})
    (tmp_path / "passwords").chmod(0o600)
    settings = {
        "auth.password_file": tmp_path / "passwords",
        "auth.permissions_file": tmp_path / "permissions.toml",
    }
    return penstock_server(flush="async", settings=settings)


def test_audit_of_connected_denied_and_disconnected_clients(server: PenstockServer) -> None:
    device = Device(server.port, "d1")
    device.connect("ann", "secret")
    assert device.published("closed/x") == ReasonCode.NOT_AUTHORIZED
    assert device.subscribe("closed/#") == ReasonCode.NOT_AUTHORIZED
    device.send(Disconnect())
    came = wait_for_audit(server, "connected", client_id="d1")
    assert (came["user"], came["count"], came["address"][:10]) == ("ann", 1, "127.0.0.1:")
    for reason in ("publish to closed/x", "subscribe to closed/#"):
        assert wait_for_audit(server, "denied", client_id="d1", reason=reason)["user"] == "ann"
    left = wait_for_audit(server, "disconnected", client_id="d1")
    assert (left["user"], left["reason"]) == ("ann", "it sent DISCONNECT")


@IN_SEVERAL_PROCESSES
def test_audit_of_refused_clients_with_reason(server: PenstockServer) -> None:
    for _ in range(3):
        Device(server.port, "d2").connect("ann", "wrong")
    until(lambda: sum(line["count"] for line in audit_lines(server, "refused", client_id="d2", user="ann")) == 3)
    assert "open_session" not in str(audit_lines(server))
    garbage = Device(server.port, "x")
    garbage._socket.sendall(b"\x10\xff\xff\xff\xff\x01")
    until(lambda: any("malformed" in line.get("reason", "") for line in audit_lines(server, "refused")))
    assert audit_lines(server, "connected") == []


def test_audit_of_take_overs_and_cut_off_clients(server: PenstockServer) -> None:
    first, second = Device(server.port, "d3"), Device(server.port, "d3")
    first.connect("ann", "secret")
    second.connect("ann", "secret")
    assert wait_for_audit(server, "taken_over", client_id="d3")["user"] == "ann"
    second.send(Connect("d3"))
    assert wait_for_audit(server, "cut_off", client_id="d3")["user"] == "ann"


def test_a_reload_and_one_that_failed(server: PenstockServer, tmp_path: Path) -> None:
    device = Device(server.port, "d4")
    device.connect("ann", "secret")
    write_passwords(tmp_path / "passwords", {"bob": "other"})
    reload(server)
    wait_for_audit(server, "reloaded")
    wait_for_audit(server, "cut_off", client_id="d4")
    (tmp_path / "permissions.toml").write_text("nonsense")
    server.signal(signal.SIGHUP)
    assert "permissions.toml" in wait_for_audit(server, "reload_failed")["reason"]


@IN_SEVERAL_PROCESSES
def test_a_kill_loses_what_is_not_yet_a_second_old_and_no_more(server: PenstockServer) -> None:
    Device(server.port, "d5").connect("ann", "secret")
    wait_for_audit(server, "connected", client_id="d5")
    Device(server.port, "d5").connect("ann", "wrong")
    wait_for_audit(server, "refused", client_id="d5")
    server.kill()
    assert audit_lines(server, "connected", client_id="d5")
    assert audit_lines(server, "refused", client_id="d5")
    server.restart()
    Device(server.port, "d6").connect("ann", "secret")
    wait_for_audit(server, "connected", client_id="d6")
    assert audit_lines(server, "connected", client_id="d5"), "a new process goes on in the same file"


def test_a_flood_of_random_names_is_counted_and_stops_nobody(server: PenstockServer) -> None:
    good = Device(server.port, "good")
    good.connect("ann", "secret")
    flood = [Device(server.port, f"flood-{number}") for number in range(300)]
    for device in flood:
        device.send_connect(device.client_id.replace("flood", "nobody"))
    for device in flood:
        device.next(ConnAck)
    assert good.published("open/x") in (ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    until(lambda: sum(line["count"] for line in audit_lines(server, "refused")) == 300)
    lines = audit_lines(server, "refused")
    assert len(lines) < 300
    assert any("others" in line["reason"] for line in lines)


def test_audit_of_clients_refused_after_a_timeout(penstock_server: ServerFactory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody_answers:
        hook = f"http://127.0.0.1:{nobody_answers.getsockname()[1]}/"
        settings = {"auth.http_connect_url": hook, "auth.http_timeout_ms": 60_000, "gateway.connect_timeout_s": 1}
        server = penstock_server(settings=settings)
        waiting, silent = Device(server.port, "d10"), Device(server.port, "d11")
        waiting.send_connect("ann")
        silent._socket.sendall(b"\x10\x7f")
        unanswered = wait_for_audit(server, "refused", client_id="d10", user="ann")
        assert unanswered["reason"] == "no answer about this client in time"
        assert wait_for_audit(server, "refused", reason="no CONNECT in time")


@IN_SEVERAL_PROCESSES
def test_logrotate_may_move_the_files_away(server: PenstockServer) -> None:
    Device(server.port, "d7").connect("ann", "secret")
    wait_for_audit(server, "connected", client_id="d7")
    names = [file.name for file in audit_files(server)]
    for file in audit_files(server):
        assert file.stat().st_mode & 0o777 == 0o600
        file.rename(file.with_suffix(".moved"))
    server.signal(signal.SIGHUP)
    until(lambda: [file.name for file in audit_files(server)] == names)
    Device(server.port, "d8").connect("ann", "secret")
    wait_for_audit(server, "connected", client_id="d8")
    assert not audit_lines(server, "connected", client_id="d7")


@IN_SEVERAL_PROCESSES
def test_a_clean_end_leaves_nothing_unsaid(server: PenstockServer) -> None:
    device = Device(server.port, "d9")
    device.connect("ann", "secret")
    server.terminate()
    assert audit_lines(server, "connected", client_id="d9")
    assert audit_lines(server, "cut_off", client_id="d9", reason="server shutting down")
    assert len(audit_lines(server, "stopped")) == len(audit_files(server))


def test_audit_file_can_be_elsewhere_or_off(penstock_server: ServerFactory, tmp_path: Path) -> None:
    elsewhere = penstock_server(flush="async", settings={"audit.file": tmp_path / "who.jsonl"})
    Device(elsewhere.port, "d").connect()
    until(lambda: '"client_id": "d"' in (tmp_path / "who.jsonl").read_text())
    none = penstock_server(flush="async", settings={"audit.enabled": "false"})
    Device(none.port, "d").connect()
    none.terminate()
    assert audit_files(elsewhere) == audit_files(none) == []


@pytest.mark.topologies("shared port")
def test_a_store_says_which_peers_came(server: PenstockServer) -> None:
    assert wait_for_audit(server, "peer_connected")["reason"] == "gateway"
    assert [file.name for file in audit_files(server)] == [
        "audit-gateway-1.jsonl",
        "audit-gateway-2.jsonl",
        "audit.jsonl",
    ]
