"""`penstock store repair`: restore lost records from the quarantine and from copies of the data folder."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.commands.progress import shown
from penstock.commands.store_check import Folder, Json, check_is_folder
from penstock.commands.tables import teller
from penstock.errors import UsageError

if TYPE_CHECKING:
    from lightqueue.mending.repairing import RepairReport

SHOWN = 20


def repair(
    folder: Folder,
    copies: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="DIR", help="A backup or another copy of this folder; may be repeated."),
    ] = None,
    unconfirmed: Annotated[
        bool,
        typer.Option("--unconfirmed", help="Also restore records that a power cut left after a hole."),
    ] = False,
    index: Annotated[bool, typer.Option("--index", help="Rebuild the index, also if the log needs no repair.")] = False,
    as_json: Json = False,
) -> None:
    """Restore lost records of a data folder from its quarantine or a copy. No server may run on the folder.

    The command first mends damage as a start does. Then it replaces lost records by intact ones with the same
    log_offset. It writes changed files anew and keeps the old ones in `repair-undo`. It may be interrupted and run
    again.

    Exit code: 0, nothing is lost now; 1, records are still lost, or the repair failed.
    """
    check_is_folder(folder)
    from lightqueue.mending.repairing import repair_folder
    from store.files.folder import LOG, umask_for

    for copy in copies or ():
        if not (copy / LOG).is_dir():
            raise UsageError(f"{copy}: has no log; give a data folder or a backup")
        if copy.resolve() == folder.resolve():
            raise UsageError(f"{copy}: is the folder to repair; give another one")
    if not (folder / LOG).is_dir():
        raise UsageError(f"{folder}: has no log; restore a backup with `penstock store restore`")
    os.umask(umask_for(bool(folder.stat().st_mode & 0o040)))
    with shown("repair") as on_progress:
        report = repair_folder(folder, copies or (), unconfirmed, index, on_progress)
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        _show(folder, report)
    raise typer.Exit(1 if report.repaired.lost or report.repaired.changed or not report.is_index_whole else 0)


def _show(folder: Path, report: "RepairReport") -> None:
    say = teller()
    repaired = report.repaired
    for finding in repaired.findings[:SHOWN]:
        say(f"set right: {finding}")
    for start, end, name in repaired.got_back[:SHOWN]:
        say(f"came back: log_offset {start} to {end} ({end - start} bytes), from {name}")
    if len(repaired.got_back) > SHOWN:
        say(f"came back: {len(repaired.got_back) - SHOWN} ranges more; --json shows them")
    for topic, number in repaired.topics.most_common(SHOWN):
        say(f"    {number} messages of {topic}")
    for hole in repaired.lost[:SHOWN]:
        say(f"still lost: log_offset {hole.start} to {hole.end} ({hole.end - hole.start} bytes)", "bold red")
    if len(repaired.lost) > SHOWN:
        say(f"still lost: {len(repaired.lost) - SHOWN} ranges more; --json shows them")
    for segment in repaired.changed:
        say(f"still not what it was when it was first scrubbed: {segment.path}", "bold red")
    say(f"the index {report.index}")
    if report.undo is not None:
        say(f"the files that were replaced are in {report.undo}; delete it once all is well")
    say("something is still lost" if repaired.lost or repaired.changed else f"{folder}: nothing is lost", "bold")
