"""Sockets, by themselves: real ones and a real epoll, looked at when the test says so."""

from __future__ import annotations

import gc
import itertools
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.mqtt._mqtt import HAS_EPOLL, Sockets, Turn
from tests.support.stores import wait_until

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="this system has no epoll")

HIGH_BYTES = 100_000
READ_BUFFER_BYTES = 4_096
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() takes back what was sent


class Recorder:
    """A protocol that notes what it is told."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.pieces = 0
        self.told: list[str] = []
        self.lost: list[Exception | None] = []
        self.on_data: Callable[[], object] = lambda: None
        self.keeps_open = False
        self._buffer = bytearray(READ_BUFFER_BYTES)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_BYTES)

    def get_buffer(self, _: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self.received += self._buffer[:size]
        self.pieces += 1
        self.on_data()

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Bench:
    """Sockets, and what is at the other ends."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.turns = 0
        self.turn = Turn(self)
        self.wakes = 0
        self.on_end: Callable[[], object] = lambda: None
        self.sockets = Sockets(self.turn, bytearray(READ_BUFFER_BYTES), self._call_soon)
        self.peers: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))

    def _call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.calls.append((callback, arguments))

    def wake(self) -> None:
        self.wakes += 1
        self._call_soon(self.end_turn)

    def store_batch(self) -> None:
        """Its turn stores nothing."""

    def settle(self) -> None:
        """No subscription is asked for."""

    def shed_incomplete(self, is_open: bool) -> None:
        """No limit is set."""

    def end_turn(self) -> None:
        self.turns += 1
        self.turn.begin()
        self.on_end()

    def connect(self) -> tuple[Recorder, socket.socket]:
        peer = self.dial()
        return self.accept(), peer

    def dial(self) -> socket.socket:
        peer = socket.create_connection(self._listening.getsockname())
        peer.settimeout(20)
        self.peers.append(peer)
        return peer

    def accept(self) -> Recorder:
        accepted, address = self._listening.accept()
        accepted.setblocking(False)
        recorder = Recorder()
        self.sockets.open(accepted.detach(), recorder, address)
        return recorder

    @property
    def is_ready(self) -> bool:
        return are_ready(self.sockets)

    def look(self) -> None:
        self.sockets.look()
        self.run_calls()

    def run_calls(self) -> None:
        calls, self.calls = self.calls, []
        for callback, arguments in calls:
            callback(*arguments)

    def look_until(self, condition: Callable[[], object]) -> None:
        def is_so() -> bool:
            self.look()
            return bool(condition())

        wait_until(is_so)

    def close(self) -> None:
        self._listening.close()
        for peer in self.peers:
            peer.close()


def are_ready(*all_of: Any, wait_ms: int = 0) -> bool:
    """Whether each of these can be read, one of them within some time at most."""
    poll = select.poll()
    for each in all_of:
        poll.register(each, select.POLLIN)
    return len(poll.poll(wait_ms)) == len(all_of)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def fill(recorder: Recorder, least: int) -> bytes:
    """Write until so much is held."""
    written = bytearray()
    while recorder.transport.get_write_buffer_size() < least:
        written += os.urandom(1_000) * 10
        recorder.transport.write(bytes(written[-10_000:]))
    return bytes(written)


def read_all(bench: Bench, peer: socket.socket, size: int) -> bytes:
    found = bytearray()
    peer.setblocking(False)
    while len(found) < size:
        bench.look()
        try:
            found += peer.recv(65_536)
        except BlockingIOError:
            are_ready(peer, bench.sockets, wait_ms=1_000)
    return bytes(found)


def test_socket_input_is_received_and_output_is_sent(bench: Bench) -> None:
    recorder, peer = bench.connect()
    peer.sendall(b"hello")
    bench.look_until(lambda: recorder.received == b"hello")
    recorder.transport.write(b"good ")
    recorder.transport.write(b"day")
    assert peer.recv(8, socket.MSG_WAITALL) == b"good day"
    assert recorder.transport.get_extra_info("peername") == peer.getsockname()
    assert recorder.transport.get_extra_info("sockname") == peer.getpeername()
    assert recorder.transport.get_extra_info("sslcontext") is None
    assert not bench.is_ready


def test_a_slow_reader_is_written_to_as_it_reads(bench: Bench) -> None:
    recorder, peer = bench.connect()
    written = fill(recorder, HIGH_BYTES + 1)
    assert recorder.told == ["pause"]
    bench.look()
    assert not bench.is_ready  # it waits for room
    assert read_all(bench, peer, len(written)) == written
    bench.look_until(lambda: recorder.told == ["pause", "resume"])
    assert recorder.transport.get_write_buffer_size() == 0
    assert not bench.is_ready


def test_a_lower_limit_counts_at_once(bench: Bench) -> None:
    recorder, _ = bench.connect()
    fill(recorder, 60_000)
    assert recorder.told == []
    recorder.transport.set_write_buffer_limits(high=50_000)
    assert recorder.told == ["pause"]


def test_close_writes_first_what_is_held(bench: Bench) -> None:
    recorder, peer = bench.connect()
    written = fill(recorder, HIGH_BYTES)
    recorder.transport.close()
    bench.look()
    assert not recorder.lost
    assert read_all(bench, peer, len(written)) == written
    bench.look_until(lambda: recorder.lost)
    assert recorder.lost == [None]
    assert peer.recv(1) == b""


def test_abort_does_not(bench: Bench) -> None:
    recorder, peer = bench.connect()
    fill(recorder, HIGH_BYTES)
    recorder.transport.abort()
    assert not recorder.lost  # not in the midst of what it does
    bench.look()
    recorder.transport.write(b"too late")
    recorder.transport.abort()
    bench.look()
    assert recorder.lost == [None]
    assert recorder.transport.get_extra_info("peername") == peer.getsockname()


def test_a_peer_that_half_closes_gets_what_is_held_for_it(bench: Bench) -> None:
    recorder, peer = bench.connect()
    written = fill(recorder, HIGH_BYTES)
    peer.sendall(b"the last")
    peer.shutdown(socket.SHUT_WR)
    bench.look_until(lambda: recorder.told[-1:] == ["eof"])
    assert recorder.received == b"the last"
    bench.look()
    assert not bench.is_ready  # though it can be read for ever
    assert read_all(bench, peer, len(written)) == written
    bench.look_until(lambda: recorder.lost)
    assert recorder.lost == [None]
    assert peer.recv(1) == b""


def test_a_half_closed_peer_may_be_kept(bench: Bench) -> None:
    recorder, peer = bench.connect()
    recorder.keeps_open = True
    peer.shutdown(socket.SHUT_WR)
    bench.look_until(lambda: recorder.told)
    assert not bench.is_ready
    recorder.transport.write(b"still here")
    assert peer.recv(10, socket.MSG_WAITALL) == b"still here"


def test_write_eof_comes_after_what_is_held_and_what_comes_is_taken(bench: Bench) -> None:
    recorder, peer = bench.connect()
    written = fill(recorder, HIGH_BYTES)
    recorder.transport.write_eof()
    with pytest.raises(RuntimeError):
        recorder.transport.write(b"more")
    assert read_all(bench, peer, len(written)) == written
    bench.look_until(lambda: are_ready(peer))
    assert peer.recv(1) == b""
    peer.sendall(b"an answer")
    bench.look_until(lambda: recorder.received == b"an answer")
    peer.close()
    bench.look_until(lambda: recorder.lost)
    assert recorder.lost == [None]


def test_paused_socket_is_not_reported(bench: Bench) -> None:
    """Level-triggered, it would be in each turn; and so would be the error of one that is gone."""
    recorder, peer = bench.connect()
    recorder.transport.pause_reading()
    peer.sendall(b"kept")
    assert not bench.is_ready
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    peer.close()
    assert not bench.is_ready
    recorder.transport.resume_reading()
    bench.look_until(lambda: recorder.lost)
    assert isinstance(recorder.lost[0], ConnectionResetError)


def test_a_paused_one_that_has_gone_is_found_out_by_writing(bench: Bench) -> None:
    recorder, peer = bench.connect()
    recorder.transport.pause_reading()
    fill(recorder, HIGH_BYTES)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    peer.close()
    bench.look_until(lambda: recorder.lost)
    assert isinstance(recorder.lost[0], OSError)


def test_a_reset_in_the_midst_of_a_turn(bench: Bench) -> None:
    """The second connection is reset after epoll reported it, and before it is read."""
    first, to_first = bench.connect()
    second, to_second = bench.connect()
    for peer in (to_first, to_second):
        peer.sendall(b"x")
    wait_until(lambda: are_ready(first.transport, second.transport))

    def reset() -> None:
        first.on_data = lambda: None
        to_second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        to_second.close()
        second.transport.write(b"to nobody")

    first.on_data = reset
    bench.look_until(lambda: second.lost)
    assert first.received == b"x"
    assert not first.lost
    to_first.sendall(b"y")
    bench.look_until(lambda: first.received == b"xy")


def test_endless_sender_does_not_delay_other_sockets(bench: Bench) -> None:
    firehose, to_firehose = bench.connect()
    quiet, to_quiet = bench.connect()
    to_firehose.setblocking(False)

    def pour() -> None:
        try:
            while to_firehose.send(bytes(1 << 16)):
                pass
        except BlockingIOError:
            pass

    firehose.on_data = pour
    pour()
    bench.look_until(lambda: firehose.pieces)
    to_quiet.sendall(b"me too")
    wait_until(lambda: are_ready(quiet.transport))
    read_before = firehose.pieces
    bench.look()
    bench.look()
    assert quiet.received == b"me too"
    assert firehose.pieces - read_before <= 2  # each is read once for each look


@contextmanager
def all_lower_taken(fd: int) -> Iterator[None]:
    """What is opened gets the lowest free descriptor: have that be this one, whatever else was closed by now."""
    gc.collect()
    lower = [os.open(os.devnull, os.O_RDONLY)]
    while lower[-1] < fd:
        lower.append(os.open(os.devnull, os.O_RDONLY))
    os.close(lower.pop())
    yield
    for each in lower:
        os.close(each)


def test_a_descriptor_that_is_another_socket_within_one_look(bench: Bench) -> None:
    """What epoll reported is the old one's; the new one has sent nothing and notices nothing."""
    pair = [bench.connect() for _ in range(2)]
    (first, _), (second, _) = pair
    to_new = bench.dial()
    made: list[Recorder] = []

    def replace(old: Recorder) -> None:
        fd = old.transport.fileno()
        old.transport.abort()
        bench.run_calls()
        with all_lower_taken(fd):
            made.append(bench.accept())
        assert made[0].transport.fileno() == fd

    first.on_data = lambda: None if made else replace(second)  # whichever is served first
    second.on_data = lambda: None if made else replace(first)
    for _, peer in pair:
        peer.sendall(b"x")
    wait_until(lambda: are_ready(first.transport, second.transport))
    bench.look()
    (new,) = made
    assert (first.pieces + second.pieces, len(first.lost) + len(second.lost)) == (1, 1)
    assert not any((new.received, new.told, new.lost))
    to_new.sendall(b"new")
    bench.look_until(lambda: new.received == b"new")


def test_a_protocol_that_fails_loses_its_connection_only(bench: Bench) -> None:
    broken, to_broken = bench.connect()
    good, to_good = bench.connect()

    def fail() -> None:
        bench.turn.request()
        raise ValueError("a bug")

    broken.on_data = fail
    to_broken.sendall(b"x")
    wait_until(lambda: bench.is_ready)
    with pytest.raises(ValueError, match="a bug"):
        bench.look()
    bench.run_calls()
    assert bench.turns == 1  # nobody else would end it
    to_good.sendall(b"y")
    bench.look_until(lambda: good.received == b"y")
    assert isinstance(broken.lost[0], ValueError)


def test_many_closing_at_once(bench: Bench) -> None:
    found = [bench.connect() for _ in range(1_000)]
    for _, peer in found:
        peer.close()
    bench.look_until(lambda: all(recorder.lost for recorder, _ in found))
    assert {tuple(recorder.lost) for recorder, _ in found} == {(None,)}
    assert not bench.is_ready


def test_closed_socket_is_told_before_the_turn_ends(bench: Bench) -> None:
    leaves, to_leaves = bench.connect()
    sends, to_sends = bench.connect()
    sends.on_data = bench.turn.request
    lost_at_end: list[int] = []
    bench.on_end = lambda: lost_at_end.append(len(leaves.lost))
    to_leaves.close()
    to_sends.sendall(b"to one who is gone")
    wait_until(lambda: are_ready(leaves.transport, sends.transport))
    bench.look()
    assert lost_at_end == [1]


def test_the_turn_is_ended_once_for_all_that_came(bench: Bench) -> None:
    found = [bench.connect() for _ in range(10)]
    for recorder, peer in found:
        recorder.on_data = bench.turn.request
        peer.sendall(b"x")
    wait_until(lambda: are_ready(*[recorder.transport for recorder, _ in found]))
    bench.look()
    assert (bench.turns, bench.wakes) == (1, 0)
    bench.turn.request()
    assert bench.wakes == 1


def test_sockets_that_are_lost_at_once_are_dealt_with_some_at_a_time(bench: Bench) -> None:
    """What follows, as a session leaving its groups, took 5.7 ms for the 64 of one look."""
    pairs = [bench.connect() for _ in range(60)]
    for _, peer in pairs:
        peer.close()
    lost = [0]

    def is_over() -> bool:
        lost.append(sum(len(recorder.lost) for recorder, _ in pairs))
        return lost[-1] == len(pairs)

    bench.look_until(is_over)
    assert max(later - before for before, later in itertools.pairwise(lost)) <= 20
