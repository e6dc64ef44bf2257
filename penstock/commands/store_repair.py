"""`penstock store repair`: bring lost records back, from what was put aside and from copies of the data folder."""

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
        typer.Option("--unconfirmed", help="Put back also what a power cut left behind a hole."),
    ] = False,
    index: Annotated[bool, typer.Option("--index", help="Build the index again, whatever became of the log.")] = False,
    as_json: Json = False,
) -> None:
    """Bring back what a data folder has lost, as far as its quarantine or a copy has it. No server may run on it.

    It first does what a start does about damage, then puts intact records with the same log_offset in the place of
    those that were lost. Files that it changes are written anew, and the old ones kept in `repair-undo`. It may be
    interrupted and given again.

    Exit code: 0, nothing is lost (any more); 1, something is still lost, or the repair failed.
    """
    check_is_folder(folder)
    from lightqueue.mending.repairing import repair_folder
    from store.files.folder import LOG, umask_for

    for copy in copies or ():
        if not (copy / LOG).is_dir():
            raise UsageError(f"{copy}: holds no log; name a data folder or a backup")
        if copy.resolve() == folder.resolve():
            raise UsageError(f"{copy}: is the folder that is to be repaired")
    if not (folder / LOG).is_dir():
        raise UsageError(f"{folder}: holds no log; bring a backup back with `penstock store restore`")
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
