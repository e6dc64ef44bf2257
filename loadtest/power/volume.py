"""A file system that keeps synced data, and an arbitrary part of the rest.

It holds what a disk with sectors of 512 bytes may hold of a file: of each sector its content after any of the writes
since the file's last sync, or before them; and any of the sizes that the file had. Bytes never written are zeros. A
name that was created, removed or changed may be in its new or old state until its folder is synced; a rename happens or
does not. That is less than any journal promises: neither names, nor data and names, keep their order.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from loadtest.errors import LoadTestError
from loadtest.power.recording import Event

SECTOR_BYTES = 512
KEEP_SIZE = 1


class FileChange(NamedTuple):
    """A change of a file: bytes at a position or, with None, another size."""

    number: int
    at: int
    data: bytes | None

    def size_after(self, size: int) -> int:
        return self.at if self.data is None else max(size, self.at + len(self.data))


@dataclass(eq=False)
class VolumeFile:
    """The certain content of a file, and the changes since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[FileChange] = field(default_factory=list)

    def settle(self, before: int) -> None:
        """Apply the changes before a successful sync that began at event `before`."""
        done = [change for change in self.pending if change.number < before]
        del self.pending[: len(done)]
        for change in done:
            _apply(self.durable, change)

    def size(self) -> int:
        size = len(self.durable)
        for change in self.pending:
            size = change.size_after(size)
        return size


@dataclass(eq=False)
class Folder:
    """A folder; `names` as the running server sees them; `durable` as the disk certainly has them."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = VolumeFile | Folder


class Naming(NamedTuple):
    """Names that change together: a rename has two."""

    number: int
    changes: tuple[tuple[Folder, str, Node | None], ...]

    def touches(self, folders: set[Folder]) -> bool:
        return any(folder in folders for folder, _, _ in self.changes)


class Volume:
    """Owner of the files as of the followed events."""

    def __init__(self) -> None:
        self.root = Folder()
        self.namings: list[Naming] = []  # not made certain by a sync yet
        self._open: dict[int, Node] = {}
        self._syncs: dict[int, int] = {}  # syncs under way: the event of their beginning
        self._last_sync = -1  # of the finished syncs: the event of the latest beginning

    def follow(self, event: Event) -> None:
        """Apply one more event. Raises LoadTestError if it is impossible."""
        match event.kind:
            case "o":
                self._on_open(event)
            case "c":
                pass  # it may have been open twice; no number is used again
            case "w":
                self._file(event).pending.append(FileChange(event.number, event.first, event.data))
            case "t":
                self._file(event).pending.append(FileChange(event.number, event.first, None))
            case "T":
                found = self._find(event.paths[0])
                assert isinstance(found, VolumeFile)
                found.pending.append(FileChange(event.number, event.first, None))
            case "f":
                self._on_allocate(event)
            case "b":
                self._syncs[event.first] = event.number
            case "e":
                self._last_sync = max(self._last_sync, self._syncs[event.first])
                self._on_synced(self._open[event.file], self._syncs.pop(event.first))
            case _:
                self._on_name(event)

    def _file(self, event: Event) -> VolumeFile:
        found = self._open[event.file]
        assert isinstance(found, VolumeFile)
        return found

    def _on_open(self, event: Event) -> None:
        path = event.paths[0]
        folder, name = self._place(path)
        node: Node | None = folder.names.get(name) if path else self.root
        if node is None:
            if not event.first & os.O_CREAT:
                raise LoadTestError(f"{path} is opened, and was not made")
            node = VolumeFile()
            self._name(event, (folder, name, node))
        elif event.first & os.O_TRUNC and isinstance(node, VolumeFile) and node.size():
            node.pending.append(FileChange(event.number, 0, None))
        self._open[event.file] = node

    def _on_allocate(self, event: Event) -> None:
        file = self._file(event)
        if event.second & ~KEEP_SIZE:
            raise LoadTestError(f"fallocate with mode {event.second} is not followed")
        if not event.second and event.first > file.size():
            file.pending.append(FileChange(event.number, event.first, None))

    def _on_synced(self, node: Node, before: int) -> None:
        if isinstance(node, VolumeFile):
            node.settle(before)
            return
        folders = {node}
        while True:  # the folders that these depend on are certain, too
            earlier = [each for each in self.namings if each.number < before and each.touches(folders)]
            found = {folder for each in earlier for folder, _, _ in each.changes}
            if found <= folders:
                break
            folders |= found
        for naming in earlier:
            for folder, name, target in naming.changes:
                _set(folder.durable, name, target)
        self.namings = [naming for naming in self.namings if naming not in earlier]

    def _on_name(self, event: Event) -> None:
        one, other = event.paths
        folder, name = self._place(one)
        match event.kind:
            case "m" if one:
                self._name(event, (folder, name, Folder()))
            case "u" | "d":
                self._name(event, (folder, name, None))
            case "l":
                self._name(event, (*self._place(other), folder.names[name]))
            case "r":
                self._name(event, (folder, name, None), (*self._place(other), folder.names[name]))

    def _name(self, event: Event, *changes: tuple[Folder, str, Node | None]) -> None:
        for folder, name, node in changes:
            _set(folder.names, name, node)
        self.namings.append(Naming(event.number, changes))

    def _place(self, path: str) -> tuple[Folder, str]:
        parent, _, name = path.rpartition("/")
        folder = self._find(parent)
        if not isinstance(folder, Folder):
            raise LoadTestError(f"{parent} is no folder")
        return folder, name

    def _find(self, path: str) -> Node:
        node: Node = self.root
        for name in path.split("/") if path else ():
            if not isinstance(node, Folder) or name not in node.names:
                raise LoadTestError(f"{path} was not made")
            node = node.names[name]
        return node

    # --- the result of a power cut

    def write_whole(self, to: Path) -> None:
        """Write everything that was done, as without a power cut."""
        _write(self.root, to, lambda folder: folder.names, lambda file: content(file, lambda _: len(file.pending)))

    def write_certain(self, to: Path) -> None:
        """Write what any power cut now leaves: what was synced, and nothing else."""
        _write(self.root, to, lambda folder: folder.durable, lambda file: bytes(file.durable))

    def write_image(self, to: Path, rng: random.Random, has_journal: bool = False) -> str:
        """Write a state that a power cut now may leave. Returns a description of the choice.

        `has_journal`: names keep their order, and any sync makes all earlier changes certain, as on ext4.
        """
        names, kept_names = self._ordered_names(rng) if has_journal else self._some_names(rng)
        how, kept_data = _some_data(rng)
        _write(self.root, to, lambda folder: kept_names.get(folder, folder.durable), kept_data)
        return f"names: {names}; data: {how}"

    def _ordered_names(self, rng: random.Random) -> tuple[str, dict[Folder, dict[str, Node]]]:
        moment = rng.choice([self._last_sync, *(each.number for each in self.namings if each.number > self._last_sync)])
        kept: dict[Folder, dict[str, Node]] = {}
        for naming in self.namings:
            if naming.number <= moment:
                _keep(kept, naming)
        return "a journal's", kept

    def _some_names(self, rng: random.Random) -> tuple[str, dict[Folder, dict[str, Node]]]:
        how = rng.choice(("all", "none", "up to a moment", "up to a moment", "up to a moment in each folder", "any"))
        namings = self.namings
        share = rng.choice((0.1, 0.5, 0.9))
        moments = [0, *(naming.number for naming in namings)]
        moment = rng.choice(moments)
        of: dict[Folder, int] = {}
        kept: dict[Folder, dict[str, Node]] = {}
        for naming in namings:
            folder = naming.changes[-1][0]
            if how == "up to a moment in each folder":
                moment = of.setdefault(folder, rng.choice(moments))
            if how == "none" or ("up to" in how and naming.number > moment) or (how == "any" and rng.random() > share):
                continue
            _keep(kept, naming)
        return how, kept


def _keep(kept: dict[Folder, dict[str, Node]], naming: Naming) -> None:
    for folder, name, node in naming.changes:
        _set(kept.setdefault(folder, dict(folder.durable)), name, node)


def _some_data(rng: random.Random) -> tuple[str, Callable[[VolumeFile], bytes]]:
    """A rule for which unsynced data files keep."""
    ways = ("all", "none", "up to a moment", "some sectors", "some sectors", "all but a sector", "a sector", "mixed")
    how = rng.choice(ways)
    share = rng.choice((0.1, 0.5, 0.9))
    moment = rng.random()

    def kept(file: VolumeFile) -> bytes:
        count = len(file.pending)
        way = rng.choice(ways[:-1]) if how == "mixed" else how
        if way in ("all", "none") or not count:
            return content(file, lambda _: count if way == "all" else 0)
        if way == "up to a moment":
            until = round(count * (rng.random() if how == "mixed" else moment))
            return content(file, lambda _: until)
        sizes = rng.choice((count, count, rng.randint(0, count)))
        if way == "some sectors":
            chosen: dict[int, int] = {}

            def any_of(sector: int) -> int:
                if sector not in chosen:
                    chosen[sector] = count if rng.random() < share else rng.randint(0, count)
                return chosen[sector]

            return content(file, any_of, sizes)
        dirty = [sector for change in file.pending for sector in _sectors(change)]
        one = rng.choice(dirty) if dirty else -1
        return content(file, lambda sector: count if (sector == one) is (way == "a sector") else 0, sizes)

    return how, kept


def content(file: VolumeFile, kept: Callable[[int], int], size_kept: int | None = None) -> bytes:
    """The content of a file if `kept` says how many pending changes count for a sector; `size_kept`: for its size.

    By default the size follows from all kept changes.
    """
    data = bytearray(file.durable)
    size = len(data)
    until = size_kept if size_kept is not None else kept(-1)
    for number, change in enumerate(file.pending):
        if number < until:
            size = change.size_after(size)
        if change.data is None:
            for sector in range(change.at // SECTOR_BYTES, (len(data) + SECTOR_BYTES - 1) // SECTOR_BYTES):
                if number < kept(sector):
                    start = max(change.at, sector * SECTOR_BYTES)
                    end = min(len(data), (sector + 1) * SECTOR_BYTES)
                    data[start:end] = bytes(end - start)
            continue
        for sector in _sectors(change):
            if number < kept(sector):
                start = max(change.at, sector * SECTOR_BYTES)
                end = min(change.at + len(change.data), (sector + 1) * SECTOR_BYTES)
                if len(data) < end:
                    data += bytes(end - len(data))
                data[start:end] = change.data[start - change.at : end - change.at]
    if len(data) < size:
        data += bytes(size - len(data))
    return bytes(data[:size])


def _sectors(change: FileChange) -> range:
    size = len(change.data or b"")
    return range(change.at // SECTOR_BYTES, (change.at + size + SECTOR_BYTES - 1) // SECTOR_BYTES)


def _apply(data: bytearray, change: FileChange) -> None:
    if change.data is None:
        if change.at < len(data):
            del data[change.at :]
        else:
            data += bytes(change.at - len(data))
        return
    if len(data) < change.at:
        data += bytes(change.at - len(data))
    data[change.at : change.at + len(change.data)] = change.data


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _write(
    folder: Folder, to: Path, names: Callable[[Folder], dict[str, Node]], data: Callable[[VolumeFile], bytes]
) -> None:
    to.mkdir()
    written: dict[VolumeFile, Path] = {}
    _write_into(folder, to, names, data, written)


def _write_into(
    folder: Folder,
    to: Path,
    names: Callable[[Folder], dict[str, Node]],
    data: Callable[[VolumeFile], bytes],
    written: dict[VolumeFile, Path],
) -> None:
    for name, node in names(folder).items():
        path = to / name
        if isinstance(node, Folder):
            path.mkdir()
            _write_into(node, path, names, data, written)
        elif node in written:
            os.link(written[node], path)
        else:
            path.write_bytes(data(node))
            written[node] = path
