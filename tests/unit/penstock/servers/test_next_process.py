"""A supervisor tells a gateway of the process that is to replace it, with all that the gateway needs to end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.servers.handover.channel import Channel, HandOverStep
from penstock.servers.handover.next_process import REPLACED_BY, SupervisorSocket, tell_gateway


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, SupervisorSocket]]:
    """The supervisor's end and the gateway's."""
    supervisor, gateway = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with supervisor, gateway:
        yield supervisor, SupervisorSocket(gateway)


@pytest.fixture
def following() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("word", [HandOverStep.READY, HandOverStep.SERVING])
def test_gateway_can_end_the_next_process(
    pair: tuple[socket.socket, SupervisorSocket], following: subprocess.Popen[bytes], word: HandOverStep
) -> None:
    """And it is known afterwards whether it had said that it serves."""
    supervisor, gateway = pair
    own, other = socket.socketpair()
    with own:
        tell_gateway(supervisor, own, following.pid)
    found = gateway.received()
    assert found is not None
    assert found.pid == following.pid
    said = Channel(other)
    said.send(word)
    said.close()
    assert found.serves_after_all() == (word is HandOverStep.SERVING)
    assert following.wait() == -signal.SIGKILL


def test_next_process_that_is_left_finds_its_pair_closed(
    pair: tuple[socket.socket, SupervisorSocket], following: subprocess.Popen[bytes]
) -> None:
    supervisor, gateway = pair
    own, other = socket.socketpair()
    with other:
        with own:
            tell_gateway(supervisor, own, following.pid)
        found = gateway.received()
        assert found is not None
        found.leave()
        assert other.recv(1) == b""
    assert following.poll() is None


def test_a_supervisor_that_is_gone_asks_for_nothing(pair: tuple[socket.socket, SupervisorSocket]) -> None:
    supervisor, gateway = pair
    supervisor.close()
    assert gateway.received() is None


def test_only_a_supervised_process_has_that_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SupervisorSocket.of_environment() is None
    supervisor, gateway = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with supervisor:
        monkeypatch.setenv(REPLACED_BY, str(gateway.detach()))
        found = SupervisorSocket.of_environment()
        assert found is not None
        assert REPLACED_BY not in os.environ
        found.close()
