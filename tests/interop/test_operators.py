"""Operators' commands for running servers: `penstock client` and `penstock ban`, in one process and apart."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.packets import ConnAck, Disconnect, Publish
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ServerFactory
from tests.support.audit_lines import wait_for_audit
from tests.support.mqtt_packet_client import Device, until, write_passwords
from tests.support.server_process import ROOT, PenstockServer

pytestmark = pytest.mark.topologies("one process", "shared port")

TIMEOUT_S = 60


def operate(server: PenstockServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    command = [sys.executable, "-m", "penstock", *arguments, f"--data={server.data}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)


def done(server: PenstockServer, *arguments: str) -> str:
    completed = operate(server, *arguments)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def told(server: PenstockServer, *arguments: str) -> Any:
    return json.loads(done(server, *arguments, "--json"))


def complaint(server: PenstockServer, *arguments: str) -> str:
    completed = operate(server, *arguments)
    assert completed.returncode in (1, 2)
    assert "Traceback" not in completed.stderr
    return completed.stderr


@pytest.fixture
def server(penstock_server: ServerFactory) -> PenstockServer:
    return penstock_server(flush="async")


def connected(server: PenstockServer, client_id: str, **fields: Any) -> Device:
    device = Device(server.port, client_id)
    assert device.connect(**fields).reason_code == ReasonCode.SUCCESS
    return device


def test_client_commands_list_and_disconnect(server: PenstockServer) -> None:
    first = connected(server, "d-1", session_expiry_interval=300)
    first.subscribe("a/#", 1)
    second = connected(server, "d-2")
    until(lambda: len(told(server, "client", "list", "--online")) == 2)
    one, two = told(server, "client", "list", "d-")
    assert (one["client_id"], one["state"], one["subscriptions"], one["session_expiry_s"]) == ("d-1", "online", 1, 300)
    assert two["address"].startswith("127.0.0.1:")
    shown = told(server, "client", "show", "d-1")
    assert shown["subscribed"] == [{"topic_filter": "a/#", "qos": 1}]
    assert "d-1" in done(server, "client", "list")
    done(server, "client", "disconnect", "d-1", "--reason", "maintenance")
    goodbye = first.next(Disconnect)
    assert goodbye.reason_code == ReasonCode.ADMINISTRATIVE_ACTION
    assert "maintenance" in (goodbye.properties.reason_string or "")
    until(lambda: told(server, "client", "show", "d-1")["state"] == "offline")
    done(server, "client", "end", "d-1")
    assert [each["client_id"] for each in told(server, "client", "list")] == ["d-2"]
    done(server, "client", "end", "d-2")
    assert second.closed_with() == ReasonCode.ADMINISTRATIVE_ACTION
    assert "maintenance" in wait_for_audit(server, "operator", client_id="d-1")["reason"]


def test_a_ban_ends_connections_and_outlives_a_kill(server: PenstockServer) -> None:
    device = connected(server, "bad")
    good = connected(server, "good")
    done(server, "ban", "add", "--client-id", "bad", "--for", "1h", "--reason", "abuse")
    server.kill()  # right after it was confirmed
    server.restart()
    (ban,) = told(server, "ban", "list")
    assert (ban["kind"], ban["value"], ban["reason"], ban["automatic"]) == ("client_id", "bad", "abuse", False)
    refused = Device(server.port, "bad")
    assert refused.connect().reason_code == ReasonCode.BANNED
    until(lambda: Device(server.port, "good").connect().reason_code == ReasonCode.SUCCESS)
    done(server, "ban", "lift", "--client-id", "bad")
    assert told(server, "ban", "list") == []
    until(lambda: Device(server.port, "bad").connect().reason_code == ReasonCode.SUCCESS)
    assert wait_for_audit(server, "ban_lifted", client_id="bad")
    del device, good


def test_a_ban_of_an_address_ends_what_is_there(server: PenstockServer) -> None:
    devices = [connected(server, f"d-{number}") for number in range(5)]
    done(server, "ban", "add", "--address", "127.0.0.0/8")
    for device in devices:
        assert device.closed_with() == ReasonCode.ADMINISTRATIVE_ACTION
    refused = Device(server.port, "another")
    refused.send_connect()
    answer = refused.receive()
    assert answer is None or (isinstance(answer, ConnAck) and answer.reason_code == ReasonCode.BANNED)


def test_mistakes_say_what_to_do_next(server: PenstockServer, tmp_path: Path) -> None:
    assert "penstock client list" in complaint(server, "client", "show", "nobody")
    assert "penstock client list" in complaint(server, "client", "disconnect", "nobody")
    assert "penstock ban list" in complaint(server, "ban", "lift", "--user", "nobody")
    assert "one of --address" in complaint(server, "ban", "add")
    assert "no IP address" in complaint(server, "ban", "add", "--address", "example.org")
    assert "15m" in complaint(server, "ban", "add", "--user", "x", "--for", "tomorrow")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    command = [sys.executable, "-m", "penstock", "client", "list", f"--data={tmp_path / 'nowhere'}"]
    none = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert none.returncode == 1
    assert "--data DIR" in none.stderr


@pytest.mark.topologies("one process")
def test_a_data_folder_with_a_long_path(penstock_server: ServerFactory, tmp_path: Path) -> None:
    server = penstock_server(tmp_path / ("long" * 30) / "data", flush="async")
    assert (server.data / "operator.sock").stat().st_mode & 0o777 == 0o600
    assert told(server, "client", "list") == []


def test_a_session_is_given_to_another_user(penstock_server: ServerFactory, tmp_path: Path) -> None:
    """Its new user finds it, after a kill as well; a connection of the old one ends."""
    users = {"a": "1", "b": "2"}
    server = penstock_server(settings={"auth.password_file": write_passwords(tmp_path / "passwords", users)})
    kept: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 300}

    def connect(user: str) -> tuple[Device, ConnAck]:
        device = Device(server.port, "d")
        return device, device.connect(user, users[user], **kept)

    old, _ = connect("a")
    assert old.subscribe("t", 1) is ReasonCode.GRANTED_QOS_1
    assert connect("b")[1].reason_code is ReasonCode.NOT_AUTHORIZED
    done(server, "client", "assign", "d", "b")
    assert old.closed_with() is not None
    server.kill()
    server.restart()
    assert connect("a")[1].reason_code is ReasonCode.NOT_AUTHORIZED
    new, answer = connect("b")
    assert answer.session_present
    new.publish("t", b"1")
    assert new.next(Publish).payload == b"1"
    assert "no session" in complaint(server, "client", "assign", "nobody", "b")
