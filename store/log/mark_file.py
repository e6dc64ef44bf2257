"""The file in which a store keeps its ReplicaMark: how far it has accepted the partition of its cluster.

Two slots of 512 bytes are written in turn, and the one with the greater number counts, so a torn write leaves the other
one. A slot: magic 8, number 8, offset 8 (signed), checksum 4, length of the address 2, of the topic's id 2, epoch 8,
accepted 8, process 16, then address, topic's id, and CRC-32C 4.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from store.errors import FolderUnusable, unusable
from store.files.segment import sync_folder
from store.records._records import crc32c
from store.replication.frames import PROCESS_BYTES, Leader
from store.replication.judging import NOTHING_ACCEPTED, ReplicaMark

MARK_FILE = "replica-mark"
SLOT_BYTES = 512
MAGIC = b"PENRMARK"
_HEAD = struct.Struct("<8sQqIHHQQ16s")


class MarkFile:
    """Owner of the file. One thread at a time writes it."""

    def __init__(self, folder: Path, topic_id: str) -> None:
        """Open the file of a data folder, or begin it. `topic_id`: of the topic that the store is to follow.

        Raises FolderUnusable, StoreFull.
        """
        self._path = folder / MARK_FILE
        self.topic_id = topic_id
        try:
            is_new = not self._path.exists()
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o640)
            if is_new:
                sync_folder(folder)
            self._number, self.mark, known = _newest(self._fd)
        except OSError as error:
            raise unusable(folder, error) from error
        if known not in ("", topic_id):
            os.close(self._fd)
            raise FolderUnusable(
                folder,
                f"it follows the topic with the id {known}, and store.replicated_log names the one with {topic_id}: "
                "`penstock cluster recover` says what it has, and copies the log of the store that leads",
            )

    def write(self, mark: ReplicaMark) -> None:
        """Keep a mark, durably. Raises OSError."""
        self._number += 1
        data = _encode(self._number, mark, self.topic_id)
        os.pwrite(self._fd, data.ljust(SLOT_BYTES, b"\0"), self._number % 2 * SLOT_BYTES)
        os.fdatasync(self._fd)
        self.mark = mark

    def close(self) -> None:
        os.close(self._fd)


class KnownMark(NamedTuple):
    """A mark, and the topic whose partition it is of."""

    mark: ReplicaMark
    topic_id: str


def read_mark(folder: Path) -> KnownMark | None:
    """The mark of a data folder, which may be in use; None: it is none of a cluster. Raises OSError."""
    try:
        fd = os.open(folder / MARK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        _, mark, topic_id = _newest(fd)
    finally:
        os.close(fd)
    return KnownMark(mark, topic_id)


def _newest(fd: int) -> tuple[int, ReplicaMark, str]:
    found = [_decode(os.pread(fd, SLOT_BYTES, at)) for at in (0, SLOT_BYTES)]
    return max((slot for slot in found if slot is not None), default=(0, NOTHING_ACCEPTED, ""))


def _encode(number: int, mark: ReplicaMark, topic_id: str) -> bytes:
    leader = mark.leader or Leader("", bytes(PROCESS_BYTES))
    address, topic = leader.address.encode(), topic_id.encode()
    head = (MAGIC, number, mark.offset, mark.checksum, len(address), len(topic), mark.epoch, mark.accepted)
    data = _HEAD.pack(*head, leader.process) + address + topic
    return data + crc32c(data).to_bytes(4, "little")


def _decode(data: bytes) -> tuple[int, ReplicaMark, str] | None:
    """The slot's number, the mark, and the id of its topic; None if it is damaged or blank."""
    if len(data) < _HEAD.size or data[:8] != MAGIC:
        return None
    _, number, offset, checksum, address_bytes, topic_bytes, epoch, accepted, process = _HEAD.unpack_from(data)
    topic_at = _HEAD.size + address_bytes
    end = topic_at + topic_bytes
    if crc32c(data[:end]) != int.from_bytes(data[end : end + 4], "little"):
        return None
    address = data[_HEAD.size : topic_at].decode()
    leader = Leader(address, process) if address else None
    return number, ReplicaMark(offset, checksum, epoch, accepted, leader), data[topic_at:end].decode()
