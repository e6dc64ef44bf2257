"""A service manager is told what systemd wants to hear, and nobody is told where there is none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.servers.process import SUPERVISED
from penstock.servers.service_manager import NOTIFY_SOCKET, tell_ready, tell_successor


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{path}" if request.param == "abstract" else path)
        systemd.settimeout(10)
        monkeypatch.setenv(NOTIFY_SOCKET, f"@{path}" if request.param == "abstract" else path)
        yield systemd


def test_service_manager_is_told_of_readiness_and_of_another_main_process(systemd: socket.socket) -> None:
    tell_ready()
    tell_successor(4711)
    assert [systemd.recv(99) for _ in range(2)] == [b"READY=1", b"MAINPID=4711"]


def test_a_supervised_process_tells_nobody(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUPERVISED, "gateway-1")
    tell_ready()
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(99)


def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NOTIFY_SOCKET, raising=False)
    tell_ready()
    monkeypatch.setenv(NOTIFY_SOCKET, "/there/is/no/such/socket")
    tell_ready()
