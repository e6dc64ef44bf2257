"""The socket pair between a process and the one that replaces it: frames, some with descriptors. It blocks.

    size (4 bytes, little-endian) · kind (1 byte) · content

Nobody else has an end of it: the new process inherits its end from the old one.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from penstock.errors import PenstockError

HEAD = struct.Struct("<IB")
MOST_BYTES = 512 << 20
"""The most content of one frame: a client's packet may have 256 MiB, and as much may wait for the client."""
MOST_DESCRIPTORS = 252
"""With one frame; the system passes 253."""


class HandOverFailed(PenstockError):
    """The other process is gone, too slow, or says what cannot be."""


class HandOverStep(IntEnum):
    READY = 1  # new: it has imported everything
    GATEWAY = 2  # old: what the gateway has besides connections
    LISTENER = 3  # old: the sockets of one address
    BATCH = 4  # old: some connections
    TAKEN = 5  # new: it has a LISTENER or a BATCH; of a SERVER: it has opened the store
    ALL = 6  # old: that was all
    SERVING = 7  # new: it serves from now on
    REFUSED = 8  # new: why not
    SERVER = 9  # old: in place of GATEWAY, what a server with its own store has


class ChannelFrame(NamedTuple):
    kind: HandOverStep
    content: bytes
    descriptors: list[int]


class Channel:
    """One end. Every call fails with HandOverFailed once `deadline_s` (of the monotonic clock) has passed."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.deadline_s = float("inf")

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: HandOverStep, content: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        assert len(descriptors) <= MOST_DESCRIPTORS
        data = memoryview(HEAD.pack(len(content), kind) + content)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._wait()
            sent = self._socket.sendmsg([data], rights)
            while sent < len(data):
                self._wait()
                sent += self._socket.send(data[sent:])
        except OSError as error:
            raise HandOverFailed(self._refusal() or f"it takes nothing: {error.strerror or error}") from error

    def receive(self) -> ChannelFrame:
        head, descriptors = self._first()
        size, kind = HEAD.unpack(head)
        try:
            known = HandOverStep(kind)
            if size > MOST_BYTES:
                raise HandOverFailed(f"a frame of {size} bytes, more than {MOST_BYTES}")
            return ChannelFrame(known, self._exactly(size), descriptors)
        except (HandOverFailed, ValueError) as error:
            close_all(descriptors)
            raise HandOverFailed(str(error)) from error

    def expect(self, kind: HandOverStep) -> ChannelFrame:
        """The next frame, which is to be of this kind."""
        frame = self.receive()
        if frame.kind is HandOverStep.REFUSED:
            raise HandOverFailed(frame.content.decode(errors="replace"))
        if frame.kind is not kind:
            close_all(frame.descriptors)
            raise HandOverFailed(f"{frame.kind.name} in place of {kind.name}")
        return frame

    def _refusal(self) -> str:
        """Why the other end takes nothing, if it said so before."""
        with suppress(HandOverFailed):
            while True:
                frame = self.receive()
                close_all(frame.descriptors)
                if frame.kind is HandOverStep.REFUSED:
                    return frame.content.decode(errors="replace")
        return ""

    def has_said(self, kind: HandOverStep) -> bool:
        """Whether the other process, which has ended, had sent a frame of this kind."""
        self.deadline_s = time.monotonic() + 1.0
        with suppress(HandOverFailed):
            while True:
                if self.receive().kind is kind:
                    return True
        return False

    def _first(self) -> tuple[bytes, list[int]]:
        """The head, and the descriptors that come with its first byte."""
        try:
            self._wait()
            space = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
            head, rights, flags, _ = self._socket.recvmsg(HEAD.size, space, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise _silence(error) from error
        descriptors = array.array("i")
        for level, number, data in rights:
            if (level, number) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        if flags & socket.MSG_CTRUNC:
            close_all(descriptors)
            raise HandOverFailed("there is no room for its descriptors; raise the limit (ulimit -n)")
        if not head:
            raise HandOverFailed("the other process is gone")
        try:
            return head + self._exactly(HEAD.size - len(head)), list(descriptors)
        except HandOverFailed:
            close_all(descriptors)
            raise

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                self._wait()
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                raise _silence(error) from error
            if not part:
                raise HandOverFailed("the other process is gone")
            data += part
        return bytes(data)

    def _wait(self) -> None:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise HandOverFailed("the other process takes too long")
        self._socket.settimeout(None if left_s == float("inf") else left_s)


def _silence(error: OSError) -> HandOverFailed:
    if isinstance(error, ConnectionResetError):  # it left something unread
        return HandOverFailed("the other process is gone")
    return HandOverFailed(f"the other process says nothing: {error.strerror or error}")


def close_all(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)
