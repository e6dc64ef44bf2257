"""`penstock serve` as a process: what it says, how it ends, and what it refuses to start with."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S, PahoClient, mark_ready, mosquitto_sub, penstock, run
from tests.support.server_process import ROOT


def serve(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A server that does not start."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        penstock("serve", *arguments),
        env=env | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """It failed with one line that has all these words in it."""
    assert done.returncode == 1, done
    lines = [line for line in done.stderr.splitlines() if not re.match(r"[0-9-]+ [0-9:,]+ INFO", line)]
    assert len(lines) == 1, done
    assert lines[0].startswith("penstock: ")
    assert all(word in lines[0] for word in words), lines
    assert "ready" not in done.stdout


def test_the_ready_line_names_the_port_and_the_folder(penstock_server: ServerFactory) -> None:
    server = penstock_server()
    assert server.port > 0
    assert f"ready mqtt://127.0.0.1:{server.port} data={server.data}\n" in server.log_text()
    assert run("mosquitto_pub", "-p", str(server.port), "-t", "t", "-m", "1", "-q", "1") == b""


def test_several_addresses(penstock_server: ServerFactory, free_port: int) -> None:
    """The server of the fixture listens on one of its own besides."""
    server = penstock_server()
    with pytest.raises(RuntimeError, match="cannot listen there"):
        penstock_server(listen=f"mqtt://127.0.0.1:{server.port}")
    both = penstock_server(listen=f"mqtt://127.0.0.1:{free_port}")
    for port in (free_port, both.port):
        run("mosquitto_pub", "-p", str(port), "-t", "t", "-m", "1", "-q", "1")
    assert f"ready mqtt://127.0.0.1:{free_port} " in both.log_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_disconnects_clients_and_exits_with_0(penstock_server: ServerFactory, number: signal.Signals) -> None:
    server = penstock_server()
    mark_ready(server.port)
    silent = socket.create_connection(("127.0.0.1", server.port))
    program = mosquitto_sub(server.port, "t", 1)
    goodbyes: list[int] = []
    clients = [PahoClient(server.port, version, f"c{version}", 3_600).connect() for version in (4, 5)]
    for client in clients:
        client.subscribe("t", 2)
        client.client.on_disconnect = lambda *arguments: goodbyes.append(arguments[3].value)
    clients[1].publish("t", [b"last"], 2)
    server.process.send_signal(number)
    assert server.process.wait(TIMEOUT_S) == 0, server.log_text()
    with silent:
        silent.settimeout(TIMEOUT_S)
        assert silent.recv(1) == b""
    program.kill()
    for client in clients:
        client.client.loop_stop()
    assert 0x8B in goodbyes
    assert "Traceback" not in server.log_text()
    server.restart()
    replayed = run(*penstock("sub", "t", "--from", "earliest", "-C", "1", "--url", f"mqtt://127.0.0.1:{server.port}"))
    assert replayed == b"last\n"


def test_serve_ends_although_a_client_reads_nothing(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.drain_timeout_s": 1})
    with socket.create_connection(("127.0.0.1", server.port)) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stuck.sendall(b"\x10\x0d\0\4MQTT\4\2\0\0\0\1s" + b"\x82\6\0\1\0\1t\0")
        publisher = PahoClient(server.port).connect()
        publisher.publish("t", [bytes(100_000)] * 100, 1)
        publisher.leave()
        server.terminate()


def test_print_config_is_a_config(tmp_path: Path) -> None:
    shown = serve("--print-config", "--flush", "buffered", "--data", str(tmp_path / "d"))
    assert shown.returncode == 0
    config = tmp_path / "penstock.toml"
    config.write_text(shown.stdout)
    assert serve("--print-config", "--config", str(config)).stdout == shown.stdout
    assert not (tmp_path / "d").exists()


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"mqtt://127.0.0.1:{taken.getsockname()[1]}"
        one_line(serve("--listen", url, "--data", str(tmp_path)), url, "in use", "another port")


def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        allowed = {"PENSTOCK_AUTH__ALLOW_ANONYMOUS": "true"}
        done = serve("--listen", f"mqtt://{host}:0", "--data", str(tmp_path), **allowed)
        one_line(done, f"mqtt://{host}:0", "cannot listen there")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
def test_listening_beyond_loopback_needs_saying_so(tmp_path: Path, host: str) -> None:
    url = f"mqtt://{host}:0"
    one_line(serve("--listen", url, "--data", str(tmp_path)), url, "auth.allow_anonymous")
    assert not (tmp_path / "log").exists()


def test_listening_beyond_loopback_when_said(penstock_server: ServerFactory) -> None:
    server = penstock_server(listen="mqtt://0.0.0.0:0", settings={"auth.allow_anonymous": "true"})
    assert "ready mqtt://0.0.0.0:" in server.log_text()
    assert "no client needs a password, and other machines can connect" in server.log_text()
    assert "no client needs a password, so only this machine can connect" in penstock_server().log_text()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        one_line(serve("--listen", "mqtt://127.0.0.1:0", "--data", str(folder)), str(folder))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    one_line(serve("--listen", "mqtt://127.0.0.1:0", "--data", "/proc/penstock"), "/proc/penstock")


def test_a_folder_in_use_by_another(penstock_server: ServerFactory) -> None:
    server = penstock_server()
    done = serve("--listen", "mqtt://127.0.0.1:0", "--data", str(server.data))
    one_line(done, str(server.data), "in use", f"pid {server.process.pid}")
    assert run("mosquitto_pub", "-p", str(server.port), "-t", "t", "-m", "1", "-q", "1") == b""
    server.kill()
    server.restart()


def test_a_wrong_setting_is_exit_code_2() -> None:
    for arguments in (("--listen", "tcp://127.0.0.1:1"), ("--listen", "mqtt://127.0.0.1"), ("--flush", "never")):
        done = serve(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
