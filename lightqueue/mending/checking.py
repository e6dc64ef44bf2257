"""Checks a data folder: what is damaged, what it held, what the next start does about it, and what an
operator can do.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from lightqueue.mending.inspect import copy_of
from lightqueue.queues.projection import Projection
from lightqueue.queues.table import KIND_NAMES, QueueTable
from store.errors import FolderUnusable, IndexFailed, UnknownFormat
from store.files.folder import CHECKPOINT, INDEX, LOCK, LOG, QUARANTINE
from store.files.marks import MARKS
from store.files.segment import Sealed
from store.files.sums import SUMS
from store.log.index import DAMAGED, FORMAT, IDENTITY_KEY, Index
from store.log.mark_file import read_mark
from store.mending.foresight import Foreseen, Progress, foresee, silent
from store.recovery.quarantine import MEANINGS, Finding, Quarantine, put_aside_from
from store.recovery.recovery_rules import only_index_knows
from store.recovery.running import RUNNING, gone_kind, last_flush
from store.recovery.salvage import Hole
from store.settings import StoreSettings

ATTEMPTS = 3  # a change that a server made meanwhile looks different the next time
NAMED_QUEUES = 20  # queues named for a lost range, at most
NAMED_RANGES = 100  # lost ranges whose queues are looked up, at most: each look reads every queue
LOG_SHARE = 0.8  # part of the progress; the index is the rest

FILES = (LOCK, f"{LOG}/{MARKS}", f"{LOG}/{RUNNING}", f"{INDEX}/{LOCK}")
"""Files that a start opens for writing, in a data folder."""

What = Literal["log", "index", "checkpoint", "format", "folder"]


class CheckResult(IntEnum):
    """Exit codes of `penstock store check`. (Exit code 2 is for wrong arguments.)"""

    INTACT = 0
    LOSS = 1
    MENDS_ITSELF = 3
    REFUSED = 4
    UNREADABLE = 5


MEANING_OF = {
    CheckResult.INTACT: "nothing is damaged",
    CheckResult.LOSS: "something that was acknowledged is lost; a start serves all that is intact",
    CheckResult.MENDS_ITSELF: "nothing is lost: a start mends it by itself",
    CheckResult.REFUSED: "a start refuses this folder",
    CheckResult.UNREADABLE: "the folder cannot be read",
}

COPIES = "copies the log of the store that leads"
SYNC_LOSES_NOTHING = "with store.flush = sync nothing is lost"


@dataclass(frozen=True)
class LostEntries:
    """The messages of one queue in a lost range, as far as the index knows."""

    queue: str
    kind: str  # topic, level or filter
    first_queue_offset: int
    messages: int


@dataclass(frozen=True)
class Damage:
    """One finding."""

    what: What
    kind: str  # kind of the Finding; `index` for an index
    file: str
    start: int  # log_offsets; both 0 for a finding outside the log
    end: int
    reason: str
    start_does: str  # action of the next start
    do: str  # action that an operator can take
    verdict: CheckResult
    held: list[LostEntries] = field(default_factory=list)
    held_unknown: bool = False  # the index does not know all of it


@dataclass
class CheckReport:
    """All findings of a check."""

    folder: str
    in_use: bool
    identity: str = ""
    first_log_offset: int = 0
    end_log_offset: int = 0
    records: int = 0
    damage: list[Damage] = field(default_factory=list)
    earlier: list[tuple[int, int]] = field(default_factory=list)  # log_offsets that earlier starts lost

    @property
    def verdict(self) -> CheckResult:
        """The gravest verdict of all findings."""
        found = {each.verdict for each in self.damage}
        order = (CheckResult.REFUSED, CheckResult.LOSS, CheckResult.MENDS_ITSELF)
        return next((verdict for verdict in order if verdict in found), CheckResult.INTACT)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict.name.lower(), "exit_code": int(self.verdict)}


def check_folder(path: Path, on_progress: Progress = silent) -> CheckReport:
    """Check all of a data folder. Of a folder in use: sealed segments and the index's checkpoint. Raises
    FolderUnusable.
    """
    if not (path / LOG).is_dir():
        raise FolderUnusable(path, "holds no log")
    for attempt in range(1, ATTEMPTS + 1):
        was_in_use = is_in_use(path)
        try:
            report = _report(path, was_in_use, on_progress)
        except OSError as error:
            if attempt == ATTEMPTS:
                raise FolderUnusable(path, str(error)) from error
            continue
        if report.verdict == CheckResult.INTACT or not (was_in_use or is_in_use(path)):
            break
    return report


def check_own_folder(path: Path) -> CheckReport:
    """Check all of a data folder that this process has locked. Raises OSError."""
    return _report(path, False, silent)


def is_in_use(path: Path) -> bool:
    """Whether a process has a data folder open. Keeps no lock, so a server can start meanwhile."""
    try:
        fd = os.open(path / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _report(path: Path, in_use: bool, on_progress: Progress) -> CheckReport:
    report = CheckReport(str(path), in_use)
    try:
        log = foresee(path / LOG, in_use, lambda what, done: on_progress(what, done * LOG_SHARE))
    except UnknownFormat as error:
        what = "a start refuses it and changes nothing"
        do = "start the version of penstock that wrote it"
        report.damage.append(
            Damage("format", "newer", str(path / LOG), 0, 0, str(error), what, do, CheckResult.REFUSED)
        )
        return report
    report.damage += _misplaced(path, log)
    report.identity, report.records = log.identity.hex(), log.records
    report.first_log_offset, report.end_log_offset = log.first, log.end
    report.earlier = [(gap.start, gap.end) for gap in log.gaps]
    on_progress("index", LOG_SHARE)
    with ExitStack() as copies:
        known = _check_indexes(path, log, report, copies)
        report.damage[:0] = [_of_log(path, finding, known, log) for finding in log.findings]
        report.damage += [_of_changed(path, segment) for segment in log.changed]
    if log.unknown_types:
        types = ", ".join(map(str, sorted(log.unknown_types)))
        reason = f"records of types {types}, which this version does not know"
        do = "start the version of penstock that wrote them"
        what = "a start that comes to one of them refuses"
        report.damage.append(Damage("format", "newer", str(path / LOG), 0, 0, reason, what, do, CheckResult.REFUSED))
    on_progress("index", 1.0)
    if (known_mark := read_mark(path)) is not None:
        accepted = known_mark.mark.accepted
        report.damage = [_in_cluster(path, damage, accepted) for damage in report.damage]
    return report


def _in_cluster(path: Path, damage: Damage, accepted: int) -> Damage:
    """The same of a store in a cluster, whose log is accepted up to a log_offset: the other stores have all of it."""
    if damage.what == "log" and damage.start >= accepted and damage.kind in ("damaged", "unconfirmed", "torn"):
        do = "nothing: if it was acknowledged, Kafka has it"
        return replace(damage, start_does="cuts it off", do=do, verdict=CheckResult.INTACT)
    do = f"start it; penstock cluster recover {path} does it as well"
    if damage.kind == "changed":
        return replace(damage, do=f"penstock cluster recover {path}, which {COPIES}")
    if damage.verdict == CheckResult.LOSS or (damage.what == "log" and damage.verdict == CheckResult.MENDS_ITSELF):
        return replace(damage, start_does=COPIES, do=do, verdict=CheckResult.MENDS_ITSELF)
    return replace(damage, do="nothing") if damage.what == "index" else damage


def _misplaced(path: Path, log: Foreseen) -> list[Damage]:
    """Damage for what lies in the folder where a start needs something else, and refuses."""
    found = [(name, "a folder, and has to be a file") for name in FILES if (path / name).is_dir()]
    if log.findings and (path / QUARANTINE).exists() and not (path / QUARANTINE).is_dir():
        found.append((QUARANTINE, "a file, and has to be a folder: it gets the damaged bytes"))
    do = "move it away, and look where it came from"
    refuses = "refuses this folder"
    return [
        Damage("folder", "misplaced", str(path / name), 0, 0, f"is {reason}", refuses, do, CheckResult.REFUSED)
        for name, reason in found
    ]


# --- the log


def _of_log(path: Path, finding: Finding, known: Index | None, log: Foreseen) -> Damage:
    copy = f"penstock store repair {path} --from COPY restores what a copy has of it"
    start_does, do, verdict = {
        "damaged": ("serves all that is intact, and keeps these bytes in quarantine", copy, CheckResult.LOSS),
        "missing": ("serves all that is there", copy, CheckResult.LOSS),
        "unconfirmed": (
            "serves what stands in front of it, and keeps this in quarantine",
            f"penstock store repair {path} --unconfirmed puts back what is valid of it; {copy}",
            CheckResult.LOSS,
        ),
        "torn": ("cuts it off, and keeps it in quarantine", "nothing: it was not acknowledged", CheckResult.INTACT),
        "unsynced": (
            "cuts it off, and keeps it in quarantine",
            f"what was acknowledged there is gone, unless a copy has it; {SYNC_LOSES_NOTHING}",
            CheckResult.INTACT,
        ),
        "foreign": ("moves the file to quarantine", "nothing; look where it came from", CheckResult.MENDS_ITSELF),
        "mended": ("mends it", "nothing", CheckResult.MENDS_ITSELF),
    }[finding.kind]
    file = next((file.path for file in log.files if f"{file.base:020}" == finding.segment), None)
    name = str(file or path / LOG / finding.segment)
    held, unknown = _held(finding, known, log)
    reason = f"{finding.reason}; {MEANINGS[finding.kind]}"
    return Damage(
        *("log", finding.kind, name, finding.start, finding.end, reason, start_does, do, verdict), held, unknown
    )


def _of_changed(path: Path, segment: Sealed) -> Damage:
    """Damage for a segment with valid records that differs from the file that was scrubbed first."""
    reason = "all records pass their checksums, but the file is not what it was when it was first scrubbed"
    do = (
        f"penstock store repair {path} --from COPY puts it back as it was, if a copy has it; "
        f"delete {path / LOG / SUMS} to take it as it is"
    )
    serves = "serves it as it is"
    where = (str(segment.path), segment.base, segment.end)
    return Damage("log", "changed", *where, reason, serves, do, CheckResult.LOSS)


def _held(finding: Finding, known: Index | None, log: Foreseen) -> tuple[list[LostEntries], bool]:
    """The messages of queues in a lost range, and whether the index may not know all of them."""
    if not finding.is_loss or finding.end <= finding.start:
        return [], False
    losses = [each for each in log.findings if each.is_loss]
    if known is None or losses.index(finding) >= NAMED_RANGES:
        return [], True
    try:
        found = list(islice(queues_in(known, log, Hole(finding.start, finding.end, "")), NAMED_QUEUES + 1))
        return found[:NAMED_QUEUES], known.applied_offset < finding.end or len(found) > NAMED_QUEUES
    except IndexFailed:
        return [], True


def queues_in(index: Index, log: Foreseen, hole: Hole) -> Iterator[LostEntries]:
    """Topics' queues with entries in a range of the log, as an index knows them. Raises IndexFailed."""
    queues: QueueTable = Projection(log, index, StoreSettings()).queues
    for queue in queues.stored_queues():
        if KIND_NAMES[queue.kind] != "topic" or queue.last_log_offset < hole.start:
            continue
        first = queues.position_of(queue, hole.start)
        messages = queues.position_of(queue, hole.end, first) - first
        if messages:
            yield LostEntries(queue.name.decode(errors="replace"), "topic", first, messages)


# --- the index


def _check_indexes(path: Path, log: Foreseen, report: CheckReport, copies: ExitStack) -> Index | None:
    """Check the index and its checkpoint; returns the usable one that is further on."""
    faults: dict[str, str | None] = {}
    usable: list[Index] = []
    for name in (INDEX, CHECKPOINT):
        if name == INDEX and report.in_use:
            continue
        if name == CHECKPOINT and not (path / name).exists():
            faults[name] = "missing" if log.base and faults.get(INDEX) else None
            continue
        index = copies.enter_context(copy_of(path / name))
        faults[name] = index_fault(path, name, index, log, report.in_use)
        is_looked_at = name == INDEX or bool(log.base and faults.get(INDEX))  # by a start
        if index is not None and faults[name] is not None and is_looked_at:
            report.damage += _gone(path, index, log)
        if index is not None and faults[name] is None:
            usable.append(index)
    for name, fault in faults.items():
        if fault is not None:
            report.damage.append(_of_index(path, name, fault, log, bool(faults.get(INDEX) and faults[CHECKPOINT])))
    return usable[0] if usable else None


def _gone(path: Path, index: Index, log: Foreseen) -> list[Damage]:
    """Damage for records that only an index still knows, as a start would report it."""
    if not log.identity or (index.folder / DAMAGED).exists() or index.format != FORMAT:
        return []
    try:
        known = index.state_offset if index.get(IDENTITY_KEY) == log.identity else 0
    except IndexFailed:
        return []
    base = log.files[-1].base if log.files else log.base
    finding = only_index_knows(gone_kind(last_flush(path / LOG)), base, log.end, log.findings, known)
    if finding is None:
        return []
    return [replace(_of_log(path, finding, None, log), start_does="names it in quarantine; nothing of it is left")]


def index_fault(path: Path, name: str, index: Index | None, log: Foreseen, in_use: bool = False) -> str | None:
    """The reason why an index is not usable, or None. Reads all of it."""
    folder = path / name
    if not folder.exists():
        return "missing"
    if (folder / DAMAGED).exists():
        return "it was found damaged, or is to be built again"
    if index is None:
        return "does not open"
    try:
        for _ in index.scan(b"", b"\xff"):
            pass
    except IndexFailed as error:
        return str(error.__cause__)
    if index.format != FORMAT:
        return f"has format {index.format}, and this version needs {FORMAT}"
    end = log.end if not in_use else max(log.end, index.state_offset)
    put_aside = put_aside_from([*Quarantine(path / QUARANTINE).findings(), *log.findings])
    if not index.fits(log.base, end, log.resumes_at, put_aside, log.identity):
        if index.fits(log.base, end, log.resumes_at, put_aside):
            return "is of another log"
        if log.resumes_at(index.applied_offset) is None:
            return f"stands at log_offset {index.applied_offset}, in the middle of a record"
        return f"stands for log_offset {index.applied_offset} to {index.state_offset}, the log for {log.base} to {end}"
    return None


def _of_index(path: Path, name: str, fault: str, log: Foreseen, are_both: bool) -> Damage:
    what: What = "index" if name == INDEX else "checkpoint"
    start_does = "builds it again from the log"
    do = f"nothing; or penstock store repair {path} --index, which builds it before the start"
    verdict = CheckResult.MENDS_ITSELF
    if name == CHECKPOINT:
        start_does = "goes on; it is made again when retention drops a segment"
        do = "nothing, as long as the index is intact"
    elif log.base:
        start_does = f"builds it again from {CHECKPOINT} and the log"
    if are_both and log.base:
        verdict = CheckResult.LOSS
        start_does = (
            f"builds it from log_offset {log.first} on: sessions, groups and queue offsets from before are lost"
        )
        do = f"put {INDEX} or {CHECKPOINT} back from a copy, or start"
        if "has format" in fault:
            verdict, start_does = CheckResult.REFUSED, "refuses, as what the log does not have would be lost"
            do = "start the version of penstock that wrote it"
    return Damage(what, "index", str(path / name), 0, 0, fault, start_does, do, verdict)
