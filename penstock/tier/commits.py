"""The newest commit of a Delta table: looked at, and seen to be whole, before it counts.

A folder may keep a part of a commit through a power cut, and deltalake takes one that ends at the end of a line for a
whole one. So our commits state how many actions they have. What was torn was never synced: the log has it.

deltalake takes an answer that has nothing, or an older commit, for a commit that says nothing, and a checkpoint made of
that loses files for good. So our commits also state how many files the table has with them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import CommitProperties, PostCommitHookProperties

from penstock.tier.errors import FilesUnseen, ObjectMissing, StorageUnreachable, TierError, TornCommit
from penstock.tier.objects import ObjectFolder

COMMITS_FOLDER: Final = "_delta_log"
NO_CHECKPOINT: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""For commits: deltalake would make a checkpoint of a state that nobody has looked at."""
LAST_CHECKPOINT: Final = f"{COMMITS_FOLDER}/_last_checkpoint"
_ACTIONS: Final = "penstock.actions"
_FILES: Final = "penstock.files"
_INFO: Final = "commitInfo"
_UNREADABLE: Final = ("Json error", "No table metadata")
"""Signs in what deltalake says that it has read something, and not what it should be."""


def properties(transactions: Sequence[Transaction], actions: int, files: int | None = None) -> CommitProperties:
    """Of a commit that has `actions` besides these transactions, and that deltalake does not repeat.

    `files`: how many the table has with it; None: it does not say.
    """
    stated = {_ACTIONS: str(actions + len(transactions))}
    if files is not None:
        stated[_FILES] = str(files)
    return CommitProperties(custom_metadata=stated, max_commit_retries=0, app_transactions=list(transactions))


def commit_path(version: int) -> str:
    return f"{COMMITS_FOLDER}/{version:020}.json"


class TableView:
    """A table at the newest version that was looked at. Every method raises TierError, TornCommit for the last time."""

    def __init__(self, objects: ObjectFolder, table: DeltaTable) -> None:
        self.table = table
        self.files = 0
        """How many data files it has."""
        self._objects = objects
        self._stated: dict[str, int] = {}  # by the newest commit
        self._read: int | None = None  # the version whose commit that is
        self._read_newest()

    @classmethod
    def opened(cls, objects: ObjectFolder) -> "TableView | None":
        """None: there is no table."""
        with _naming_torn(objects):
            try:
                table = DeltaTable(objects.delta_url, storage_options=objects.options)
            except TableNotFoundError:
                return None
        return cls(objects, table)

    def look(self) -> None:
        """Bring it up to the newest version. Raises FilesUnseen; the next look then reads the whole table again."""
        with _naming_torn(self._objects):
            if self._read is None:
                self.table = DeltaTable(self._objects.delta_url, storage_options=self._objects.options)
            else:
                self.table.update_incremental()
        self._read_newest()

    def make_checkpoint(self) -> None:
        """Write the list of files, and read it back: a wrong one would stand for the commits before it. What cannot be
        read back is deleted.
        """
        version = self.table.version()
        with self._objects.failures(self._objects.url):
            self.table.create_checkpoint()
        try:
            TableView.opened(self._objects)
        except TierError:
            self._objects.delete([LAST_CHECKPOINT, f"{COMMITS_FOLDER}/{version:020}.checkpoint.parquet"])
            raise
        with self._objects.failures(self._objects.url):
            self.table.cleanup_metadata()

    def version_of(self, application: str) -> int | None:
        """What was committed last for an application. If that was not by the newest commit, deltalake reads all commits
        since the last checkpoint.
        """
        if application in self._stated:
            return self._stated[application]
        with self._objects.failures(self._objects.url):
            return self.table.transaction_version(application)

    def _read_newest(self) -> None:
        version = self.table.version()
        if version == self._read:
            return
        self._read = None
        path = commit_path(version)
        try:
            data = self._objects.get(path)
        except ObjectMissing:
            actions = []  # a checkpoint stands for it
        else:
            # An empty one in a folder counts for nothing, as for deltalake: it does no harm.
            actions = _actions(self._objects, path, data) if data or self._objects.folder is None else []
        with self._objects.failures(self._objects.url):
            self.files = self.table.get_add_actions().num_rows
        stated = [int(each[_INFO][_FILES]) for each in actions if _FILES in each.get(_INFO, ())]
        if stated and stated[0] != self.files:
            raise FilesUnseen(self._objects.url, version, stated[0], self.files)
        transactions = (action["txn"] for action in actions if "txn" in action)
        self._stated = {each["appId"]: each["version"] for each in transactions}
        self._read = version


def _actions(objects: ObjectFolder, path: str, data: bytes) -> list[dict[str, Any]]:
    try:
        actions: list[dict[str, Any]] = [json.loads(line) for line in data.splitlines()]
        expected = 1 + sum(int(each[_INFO].get(_ACTIONS, 0)) for each in actions if _INFO in each)
    except ValueError as error:
        raise TornCommit(f"{objects.url}/{path}", str(error)) from error
    if len(actions) < expected:
        raise TornCommit(f"{objects.url}/{path}", f"it has {len(actions)} lines of {expected}")
    return actions


@contextmanager
def _naming_torn(objects: ObjectFolder) -> Iterator[None]:
    """A commit that deltalake cannot read is named, if it is the newest one."""
    try:
        with objects.failures(objects.url):
            yield
    except StorageUnreachable as error:
        if any(sign in str(error) for sign in _UNREADABLE):
            newest = [name for name in objects.names(COMMITS_FOLDER) if name.endswith(".json")][-1:]
            for path in newest:
                _actions(objects, path, objects.get(path))
        raise
