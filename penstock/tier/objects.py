"""The object store or folder that a table lies in: its objects, and the errors of its libraries in words for people.

An object is named by its path below the table's URL. deltalake and obstore stand on the same library and take the same
options, so both reach the same place.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import obstore
from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, ObjectStore, from_url

from penstock.table_place import FOLDER_OR_STORAGE, OF_STORAGE
from penstock.tier.errors import BadTierUrl, ObjectMissing, StorageRefuses, StorageUnreachable, TableTooNew, TierError

PART_BYTES: Final = 8 << 20  # of an object on its way
PARTS_AT_ONCE: Final = 2
LISTED_AT_ONCE: Final = 1000
KEYS: Final = "keys are in the environment (AWS_ACCESS_KEY_ID, ...)"
SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss", "file")
CLIENT_OPTIONS: Final = frozenset(("allow_http", "connect_timeout", "proxy_url", "timeout", "user_agent"))
RETRY_OPTIONS: Final = frozenset(("max_retries", "retry_timeout"))
Failures: Final = (DeltaError, TableNotFoundError, BaseError, OSError)
_REFUSED = re.compile(
    r"\b(?:401 Unauthorized|403 Forbidden|AccessDenied|Permission denied|lacked the necessary privileges)\b"
)
_MISSING = re.compile(r"\b(?:404 Not Found|No such file or directory)\b")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class ObjectFolder:
    """The objects below a URL: a folder's path, or `s3://bucket/path`. Raises BadTierUrl."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None, *, only_reads: bool = False) -> None:
        """`options` are the object store's, as `aws_region`; what is missing is taken from the environment.

        `only_reads`: a folder that is not there is not made, but raises ObjectMissing.
        """
        scheme, mark, path = url.partition("://")
        if not re.fullmatch(OF_STORAGE, url):
            raise BadTierUrl(f"{scheme.partition(':')[0]}:...", f"is not {FOLDER_OR_STORAGE}; {KEYS}")
        if mark and scheme not in SCHEMES:
            raise BadTierUrl(url, f"has the scheme {scheme}, which is none of {', '.join(SCHEMES)}")
        self.url = url
        self.options = {name.lower(): text for name, text in (options or {}).items()}
        self._only_reads = only_reads
        self.folder = Path(path if scheme == "file" else url) if not mark or scheme == "file" else None
        with self.failures(url):
            self.store = self._opened()

    def _opened(self) -> ObjectStore:
        if self.folder is not None:
            if not self._only_reads:
                self.folder.mkdir(parents=True, exist_ok=True)
            elif not self.folder.is_dir():
                raise ObjectMissing(self.url, "no such folder")
            return LocalStore(self.folder)
        try:
            options: Any = _split(self.options)
            return from_url(self.url, **options)
        except (BaseError, ValueError) as error:
            raise BadTierUrl(self.url, _one_line(error)) from error

    @property
    def delta_url(self) -> str:
        return str(self.folder.absolute()) if self.folder is not None else self.url

    def writer(self, path: str) -> "ObjectWriter":
        """A new object, written from beginning to end."""
        return ObjectWriter(self, path)

    def put(self, path: str, data: bytes) -> None:
        """Write an object that outlives a power cut."""
        with self.failures(path):
            obstore.put(self.store, path, data)
        self.make_durable([path])

    def get(self, path: str) -> bytes:
        """Raises ObjectMissing."""
        with self.failures(path):
            return bytes(obstore.get(self.store, path).bytes())

    def names(self, prefix: str = "", behind: str = "") -> list[str]:
        """Of the objects below a prefix, sorted; of those that sort after one."""
        with self.failures(prefix):
            found = obstore.list(self.store, prefix or None, offset=behind or None)
            return sorted(each["path"] for piece in found for each in piece)

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders at the top that begin so, sorted."""
        with self.failures(self.url):
            found = obstore.list_with_delimiter(self.store)["common_prefixes"]
        return sorted(name for name in found if name.startswith(prefix))

    def listed(self, folder: str) -> Iterator[list[tuple[str, float]]]:
        """Objects in a folder, and when each was written, in seconds since 1970: some at a time."""
        with self.failures(folder):
            for piece in obstore.list(self.store, folder, chunk_size=LISTED_AT_ONCE):
                yield [(each["path"], each["last_modified"].timestamp()) for each in piece]

    def delete_unfinished(self, folder: str, before_s: float) -> None:
        """Delete what a killed process has left of files that it wrote: in a folder they have a name of their own."""
        if self.folder is None:
            return
        with self.failures(folder):
            for path in (self.folder / folder).glob("*#*"):
                if path.stat().st_mtime < before_s:
                    path.unlink()

    def is_empty(self) -> bool:
        """Whether there is no object, or none but ours: what was put beside a table that was not made."""
        with self.failures(self.url):
            for piece in obstore.list(self.store, chunk_size=100):
                if any(not each["path"].startswith("_penstock/") for each in piece):
                    return False
        return True

    def delete(self, paths: list[str]) -> None:
        """Delete objects, as far as they are there."""
        for path in paths:
            with self.failures(path):
                try:
                    obstore.delete(self.store, path)
                except (FileNotFoundError, NotFoundError):
                    continue

    def make_durable(self, paths: list[str]) -> None:
        """See to it that objects outlive a power cut. An object store does so by itself, a folder is synced."""
        if self.folder is None:
            return
        folders = set()
        for path in paths:
            place = self.folder / path
            with self.failures(path):
                _sync(place)
            folders |= {parent for parent in place.parents if parent.is_relative_to(self.folder)}
        with self.failures(self.url):
            for parent in sorted(folders, reverse=True):
                _sync(parent)

    @contextmanager
    def failures(self, path: str) -> Iterator[None]:
        """What the libraries raise becomes a TierError that names the object."""
        try:
            yield
        except Failures as error:
            raise self._failure(path, error) from error

    def _failure(self, path: str, error: Exception) -> TierError:
        where = path if path.startswith(self.url) else f"{self.url}/{path}"
        reason = _one_line(error)
        if isinstance(error, DeltaProtocolError) or "Unsupported" in reason:
            return TableTooNew(where, reason)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError) or _REFUSED.search(reason):
            return StorageRefuses(where, reason)
        if isinstance(error, NotFoundError | FileNotFoundError | TableNotFoundError) or _MISSING.search(reason):
            return ObjectMissing(where, reason)
        return StorageUnreachable(where, reason)


class ObjectWriter:
    """An object on its way, as a file that pyarrow writes to. It is there once it is closed without an error."""

    closed = False

    def __init__(self, objects: ObjectFolder, path: str) -> None:
        self._objects, self._path = objects, path
        self.size_bytes = 0
        with objects.failures(path):
            self._file = obstore.open_writer(objects.store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    def write(self, data: bytes | memoryview) -> int:
        whole = memoryview(data).cast("B")
        with self._objects.failures(self._path):
            self._file.write(whole)
        self.size_bytes += len(whole)
        return len(whole)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Parts go out by their size."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._objects.failures(self._path):
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()


def options_of(environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment does not say by itself: who names an endpoint that begins with http:// means it."""
    endpoint = environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT") or ""
    return {"allow_http": "true"} if endpoint.startswith("http://") else {}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _one_line(error: Exception) -> str:
    """What a library says, without its colours and its traces."""
    text = _COLOURS.sub("", str(error)).partition("Debug source:")[0].partition(" 0: <unknown>")[0]
    return " ".join(text.replace("↳", " ").split())[:300]


def _split(options: Mapping[str, str]) -> dict[str, dict[str, Any] | None]:
    """Options as obstore takes them: those of the store, of the HTTP client, and of tries that follow a failure."""
    client: dict[str, Any] = {name: text for name, text in options.items() if name in CLIENT_OPTIONS}
    if "allow_http" in client:
        client["allow_http"] = client["allow_http"].lower() in ("true", "1")
    retry: dict[str, Any] = {}
    if "max_retries" in options:
        retry["max_retries"] = int(options["max_retries"])
    if "retry_timeout" in options:
        retry["retry_timeout"] = timedelta(seconds=float(options["retry_timeout"].removesuffix("s")))
    config = {name: text for name, text in options.items() if name not in CLIENT_OPTIONS | RETRY_OPTIONS}
    return {"config": config or None, "client_options": client or None, "retry_config": retry or None}
