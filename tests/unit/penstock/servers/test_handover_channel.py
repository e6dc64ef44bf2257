"""The socket pair of a hand-over: frames and descriptors arrive whole, and nothing is waited for without end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.servers.handover.channel import (
    HEAD,
    MOST_BYTES,
    MOST_DESCRIPTORS,
    Channel,
    HandOverFailed,
    HandOverStep,
    close_all,
)

PATIENCE_S = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    one, other = socket.socketpair()
    channel = Channel(one)
    channel.deadline_s = time.monotonic() + PATIENCE_S
    yield channel, other
    channel.close()
    other.close()


@pytest.fixture
def channels(ends: tuple[Channel, socket.socket]) -> tuple[Channel, Channel]:
    other = Channel(ends[1])
    other.deadline_s = time.monotonic() + PATIENCE_S
    return ends[0], other


def test_a_frame_that_fits_no_buffer_arrives_whole(channels: tuple[Channel, Channel]) -> None:
    one, other = channels
    content = os.urandom(4 << 20)
    sending = threading.Thread(target=one.send, args=(HandOverStep.BATCH, content))
    sending.start()
    assert other.receive() == (HandOverStep.BATCH, content, [])
    sending.join()


def test_descriptors_come_with_their_frame_and_are_of_the_same_files(channels: tuple[Channel, Channel]) -> None:
    one, other = channels
    pairs = [os.pipe() for _ in range(3)]
    one.send(HandOverStep.LISTENER, b"first", [pairs[0][0]])
    one.send(HandOverStep.TAKEN)
    one.send(HandOverStep.BATCH, b"second", [pairs[1][0], pairs[2][0]])
    frames = [other.receive() for _ in range(3)]
    assert [(each.content, len(each.descriptors)) for each in frames] == [(b"first", 1), (b"", 0), (b"second", 2)]
    found = [each for frame in frames for each in frame.descriptors]
    for (_, writing), reading in zip(pairs, found, strict=True):
        os.write(writing, b"%d" % writing)
        assert os.read(reading, 9) == b"%d" % writing
        assert not os.get_inheritable(reading)
    close_all([*found, *(each for pair in pairs for each in pair)])


def test_as_many_descriptors_as_a_batch_may_have(channels: tuple[Channel, Channel]) -> None:
    one, other = channels
    with socket.socket() as any_socket:
        one.send(HandOverStep.BATCH, b"", [any_socket.fileno()] * MOST_DESCRIPTORS)
        found = other.receive().descriptors
    assert len(found) == MOST_DESCRIPTORS
    close_all(found)


def test_refused_hand_over_says_why(channels: tuple[Channel, Channel]) -> None:
    one, other = channels
    one.send(HandOverStep.REFUSED, b"the state has another version")
    with pytest.raises(HandOverFailed, match="the state has another version"):
        other.expect(HandOverStep.SERVING)


def test_a_frame_of_another_kind_is_no_answer(channels: tuple[Channel, Channel]) -> None:
    one, other = channels
    one.send(HandOverStep.TAKEN)
    with pytest.raises(HandOverFailed, match="TAKEN in place of SERVING"):
        other.expect(HandOverStep.SERVING)


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (HEAD.pack(MOST_BYTES + 1, HandOverStep.BATCH), "more than"),
        (HEAD.pack(0, 99), "99 is not a valid HandOverStep"),
    ],
)
def test_a_head_that_cannot_be_is_refused_and_its_descriptors_closed(
    ends: tuple[Channel, socket.socket], head: bytes, fault: str
) -> None:
    channel, other = ends
    reading, writing = os.pipe()
    socket.send_fds(other, [head], [writing])
    os.close(writing)
    with pytest.raises(HandOverFailed, match=fault):
        channel.receive()
    assert os.read(reading, 1) == b""  # nobody else has the other end
    os.close(reading)


def test_an_end_in_the_middle_of_a_frame_is_noticed(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.sendall(HEAD.pack(10, HandOverStep.BATCH) + b"12345")
    other.close()
    with pytest.raises(HandOverFailed, match="is gone"):
        channel.receive()


def test_hand_over_channel_does_not_wait_past_the_deadline(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    channel.deadline_s = time.monotonic() + 0.05
    with pytest.raises(HandOverFailed):
        channel.receive()
    with pytest.raises(HandOverFailed, match="takes too long"):
        channel.send(HandOverStep.ALL)


def test_whether_it_was_said_before_the_end(channels: tuple[Channel, Channel]) -> None:
    one, other = channels
    one.send(HandOverStep.TAKEN)
    one.send(HandOverStep.SERVING)
    one.close()
    assert other.has_said(HandOverStep.SERVING)
    assert not other.has_said(HandOverStep.SERVING)
