"""Opening the segments of a folder after whatever happened to it: what can be given up, and what must not be.

The end of the last segment may be torn; nothing there was acknowledged as safe, so it is cut. Damage anywhere else is
damage to data that may have been acknowledged: an error, never a silent loss.
"""

import logging
import os
import time
from itertools import pairwise
from pathlib import Path

from store.errors import CorruptSegment, FolderUnusable, StoreFull
from store.segment import HEADER_BYTES, NO_ROOM, Segment, segment_paths
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")


def open_segments(folder: Path, settings: StoreSettings) -> tuple[list[Segment], int]:
    """The segments, the last of them writable, and the log_offset at which the next append goes.

    Raises CorruptSegment, FolderUnusable or, if a new segment is needed, StoreFull.
    """
    paths = _without_stillborn(segment_paths(folder))
    segments: list[Segment] = []
    try:
        for path in paths:
            segments.append(Segment.open(path, writable=path == paths[-1]))
        _check_sealed(segments, settings.verify_at_start_bytes)
        _sync(segments)
        return _with_active(segments, folder, settings)
    except (CorruptSegment, OSError) as error:
        for segment in segments:
            segment.close()
        if isinstance(error, CorruptSegment):
            raise
        raise (StoreFull(folder) if error.errno in NO_ROOM else FolderUnusable(folder, str(error))) from error


def _without_stillborn(paths: list[Path]) -> list[Path]:
    """Drop a last file that a crash left without a header: nothing was ever appended to it."""
    if paths:
        with paths[-1].open("rb") as file:
            if not any(file.read(HEADER_BYTES)):
                paths[-1].unlink()
                return paths[:-1]
    return paths


def _check_sealed(segments: list[Segment], verify_bytes: int) -> None:
    """Refuse to start over damage in a complete segment; the newest `verify_bytes` are read through."""
    for segment, following in pairwise(segments):
        if following.base > segment.limit:
            raise CorruptSegment(segment.path, segment.limit, f"the log goes on at {following.base}: a gap")
        if following.base > segments[-1].base - verify_bytes:
            end, reason = segment.verify(following.base)
            segment.forget_pages()
            if end != following.base:
                raise CorruptSegment(segment.path, end, reason or "the records go on past the next segment's start")
        if following.base < segment.limit:
            segment.seal(following.base)  # a crash came between the new segment's creation and this


def _sync(segments: list[Segment]) -> None:
    """What a killed process wrote but did not sync is read from the page cache; from now on it counts as safe."""
    for segment in segments:
        os.fdatasync(segment.fd)


def _with_active(segments: list[Segment], folder: Path, settings: StoreSettings) -> tuple[list[Segment], int]:
    """Recover the last segment; add one where it cannot be appended to."""
    end = _recover_last(segments[-1]) if segments else 0
    if segments and segments[-1].size_bytes >= settings.segment_bytes:
        return segments, end
    segment = Segment.create(folder, end, settings.segment_bytes, 0, time.time_ns() // 1_000_000)
    if segments:  # it was sealed already, or segment_bytes grew
        segment.last_ms = segments[-1].last_ms
        segments[-1].seal(end)
    return [*segments, segment], segment.first


def _recover_last(active: Segment) -> int:
    """Cut the last segment after its last valid record: what follows was never acknowledged as safe."""
    end, reason = active.find_end()
    active.allocated_bytes = end - active.base
    if reason:
        log.warning("%s: cut at log_offset %d (%s)", active.path, end, reason)
        active.erase_after(end)
    return end
