"""Opens the log of a data folder that is of no cluster."""

from __future__ import annotations

from collections.abc import Callable

from store.errors import LogOfACluster
from store.files.folder import DataFolder
from store.log.commitlog import CommitLog
from store.log.copied import is_of_cluster
from store.log.index import remembered_marks
from store.settings import StoreSettings


def open_log(folder: DataFolder, settings: StoreSettings, on_flushed: Callable[[], None]) -> CommitLog:
    """The log, with what its index remembers of the marks. Raises LogOfACluster, and as CommitLog does.

    What a store alone appended to a log that follows a topic would be cut off once it follows it again.
    """
    if is_of_cluster(folder.path):
        raise LogOfACluster(folder.path)
    return CommitLog(folder.log, settings, on_flushed, folder.quarantine, remembered_marks(folder.path))
