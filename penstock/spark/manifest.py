"""The manifest of an export: the Parquet files that count. `manifest.json` is replaced atomically.

Files that are not in it do not count. A process holds the folder's lock while it changes the manifest.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq

from penstock.spark.errors import ExportUnusable

NAME = "manifest.json"
LOCK = "lock"
FILES = "data"
VERSION = 1


@dataclass(frozen=True)
class ExportedFile:
    """One Parquet file, by its path below `data`, with the log_offsets of its first and last row in log order."""

    path: str
    rows: int
    bytes: int
    first_log_offset: int
    last_log_offset: int


@dataclass(frozen=True)
class ExportManifest:
    """The exported messages: those in [start, until) of the log, in these files."""

    start: int
    until: int
    files: tuple[ExportedFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def with_files(self, until: int, added: list[ExportedFile]) -> "ExportManifest":
        return replace(self, until=until, files=(*self.files, *added))


def read_manifest(target: Path) -> ExportManifest | None:
    """The current manifest; None if nothing was exported yet. Raises ExportUnusable."""
    try:
        text = (target / NAME).read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExportUnusable(target / NAME, error.strerror or str(error)) from error
    try:
        found = json.loads(text)
        if found["version"] != VERSION:
            raise ExportUnusable(target / NAME, f"has version {found['version']}, this program knows {VERSION}")
        return ExportManifest(found["start"], found["until"], tuple(ExportedFile(**file) for file in found["files"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ExportUnusable(target / NAME, f"is no manifest ({error})") from error


def write_manifest(target: Path, manifest: ExportManifest) -> None:
    """Replace the manifest, durably."""
    content = {"version": VERSION, **asdict(manifest)}
    new = target / (NAME + ".new")
    with new.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    new.replace(target / NAME)
    folder = os.open(target, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Lock the folder against other exports; create it if missing. Raises ExportUnusable."""
    try:
        (target / FILES).mkdir(parents=True, exist_ok=True)
        file = (target / LOCK).open("a")
    except OSError as error:
        raise ExportUnusable(target, error.strerror or str(error)) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportUnusable(target, "another export is at work there") from None
        yield


def new_files(target: Path, manifest: ExportManifest) -> list[ExportedFile]:
    """The files that are not in the manifest yet, with the numbers in their footers."""
    known = {file.path for file in manifest.files}
    return [
        _look_at(target / FILES, path)
        for path in sorted((target / FILES).rglob("*.parquet"))
        if str(path.relative_to(target / FILES)) not in known
    ]


def _look_at(root: Path, path: Path) -> ExportedFile:
    footer = pq.read_metadata(path)
    column = footer.schema.names.index("log_offset")
    found = [footer.row_group(i).column(column).statistics for i in range(footer.num_row_groups)]
    ends = min(each.min for each in found), max(each.max for each in found)
    return ExportedFile(str(path.relative_to(root)), footer.num_rows, path.stat().st_size, *ends)


def delete_leftovers(target: Path, manifest: ExportManifest) -> int:
    """Delete the files that a killed export has left; returns how many."""
    known = {file.path for file in manifest.files}
    root = target / FILES
    leftovers = [path for path in root.rglob("*.parquet") if str(path.relative_to(root)) not in known]
    for path in leftovers:
        path.unlink()
    shutil.rmtree(root / "_temporary", ignore_errors=True)
    return len(leftovers)
