"""A blocking link at one end of a socket, and at the other end a store that the test plays."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from store.errors import HandshakeRefused, StoreAway, WireError
from store.wire import messages as wire
from store.wire.client.address import StorePort, WireAddress
from store.wire.client.blocking_link import ANOTHER_S, BlockingLink, BlockingTimes, connect
from store.wire.frames import encode
from store.wire.handshake import MAGIC

HELLO = wire.Hello([1], "client", "c-1")
WELCOME = wire.Welcome(1, "main", 0, 1 << 20, 256 << 10, 20, [], 64)
ONCE = BlockingTimes(connect_s=1.0, silent_s=0.2)
PATIENT = BlockingTimes(connect_s=60.0, silent_s=60.0, idle_s=60.0)
LASTING = BlockingTimes(connect_s=1.0, silent_s=0.2, idle_s=60.0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


Ends = tuple[socket.socket, socket.socket]


def let_in(ends: Ends, times: BlockingTimes = ONCE, *others: wire.WireMessage) -> BlockingLink:
    ends[1].sendall(encode(WELCOME) + b"".join(encode(message) for message in others))
    link = BlockingLink(ends[0], HELLO, times)
    greeting = MAGIC + encode(HELLO)
    assert ends[1].recv(len(greeting)) == greeting
    return link


def test_blocking_link_answers_pings_and_returns_answers_only(ends: Ends) -> None:
    link = let_in(ends, ONCE, wire.Ping(), wire.Safe(64))
    link.send(wire.Get(64), 1)
    ends[1].sendall(encode(wire.Failed(wire.FailureCode.STORE_FULL, "full"), 1))
    assert link.receive().message == wire.Failed(wire.FailureCode.STORE_FULL, "full")
    link.close("done")
    said = ends[1].recv(65_536)
    assert said == encode(wire.Pong()) + encode(wire.Get(64), 1) + encode(wire.Goodbye("done"))


def test_a_silent_store_and_one_that_leaves(ends: Ends) -> None:
    link = let_in(ends)
    started_s = time.monotonic()
    with pytest.raises(StoreAway, match="it is silent"):
        link.receive()
    assert time.monotonic() - started_s >= 0.2
    ends[1].sendall(encode(wire.Goodbye("it stops")))
    with pytest.raises(StoreAway, match="it said goodbye: it stops"):
        link.receive()
    ends[1].close()
    with pytest.raises(StoreAway, match="it said goodbye"):
        link.receive()


def test_a_lasting_link_sends_heartbeats(ends: Ends) -> None:
    link = let_in(ends, LASTING)
    ends[1].settimeout(10)
    assert ends[1].recv(65_536).startswith(encode(wire.Ping()))
    link.close()


def test_a_link_that_nobody_uses_closes_itself(ends: Ends) -> None:
    let_in(ends, BlockingTimes(connect_s=1.0, silent_s=0.2, idle_s=0.0))
    ends[1].settimeout(10)
    assert ends[1].recv(65_536) == encode(wire.Goodbye("nothing to be asked"))
    assert ends[1].recv(65_536) == b""


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (encode(wire.Refused("token", "not the token")), HandshakeRefused),
        (b"HTTP/1.1 400 Bad Request\r\n", WireError),
        (b"", StoreAway),
    ],
)
def test_no_welcome(ends: Ends, answer: bytes, error: type[Exception]) -> None:
    ends[1].sendall(answer)
    with pytest.raises(error):
        BlockingLink(ends[0], HELLO, ONCE)
    assert ends[0].fileno() == -1


def test_no_store_there() -> None:
    with pytest.raises(FileNotFoundError):
        connect(WireAddress("unix:///nonexistent/socket", path="/nonexistent/socket"), None, ONCE, HELLO)


@pytest.fixture
def stores() -> Iterator[list[socket.socket]]:
    """Two stores that take connections, as the kernel does for one that stands still."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    for each in found:
        each.settimeout(30)
    yield found
    for each in found:
        each.close()


def address(stores: list[socket.socket]) -> WireAddress:
    first, second = (StorePort(*each.getsockname()) for each in stores)
    return WireAddress("tcp://stores", *first, others=(second,))


def test_a_store_that_stands_still_is_left_for_another_one(stores: list[socket.socket]) -> None:
    def lead() -> None:
        connected, _ = stores[1].accept()
        with connected:
            connected.sendall(encode(WELCOME))
            connected.recv(65_536)
            is_left.wait(30)

    is_left = threading.Event()
    leading = threading.Thread(target=lead)
    leading.start()
    began_s = time.monotonic()
    link = connect(address(stores), None, PATIENT, HELLO)
    assert link.peer == stores[1].getsockname()
    with pytest.raises(StoreAway, match="it is silent"):  # the other one stands still as well
        link.receive()
    assert time.monotonic() - began_s < PATIENT.silent_s / 2
    is_left.set()
    leading.join()
    link.close()


def test_a_store_that_is_alone_has_long(stores: list[socket.socket]) -> None:
    times = BlockingTimes(connect_s=1.0, silent_s=ANOTHER_S + 0.5)
    began_s = time.monotonic()
    with pytest.raises(StoreAway, match="it is silent"):
        connect(WireAddress("tcp://store", *stores[0].getsockname()), None, times, HELLO)
    assert time.monotonic() - began_s >= times.silent_s
