"""`penstock store check`: find damage in a data folder, say what it held, and what to do."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.commands.progress import shown
from penstock.commands.tables import Say, teller
from penstock.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from lightqueue.mending.checking import CheckReport, Damage

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The data folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
SHOWN_RANGES = 20


class StoreUnreadable(PenstockError):
    """The folder cannot be examined."""

    exit_code = 5


def check(folder: Folder, as_json: Json = False) -> None:
    """Verify every checksum of a data folder. Report the damage, what it held, and what to do.

    The command changes nothing, and says what the next start would do. In a folder in use it reads the sealed segments
    and the checkpoint of the index.

    Exit code: 0, no damage; 1, acknowledged messages are lost, and a start serves the rest; 3, nothing is lost, and a
    start mends the damage by itself (the index, the marks, a header, a name); 4, a start refuses this folder (another
    version wrote it, or something lies in the place of one of its files); 5, the folder cannot be read; 2, wrong usage.
    """
    check_is_folder(folder)
    from lightqueue.mending.checking import check_folder
    from store.errors import StoreError

    with shown("check") as on_progress:
        try:
            report = check_folder(folder, on_progress)
        except StoreError as error:
            raise StoreUnreadable(str(error)) from error
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        _show(report)
    raise typer.Exit(int(report.verdict))


def check_is_folder(folder: Path) -> None:
    """Raises UsageError."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a folder; give the folder of `penstock serve --data`")


def _show(report: "CheckReport") -> None:
    from lightqueue.mending.checking import MEANING_OF

    say = teller()
    if report.in_use:
        say("in use by a process: only sealed segments and the checkpoint of the index are looked at")
    span = f"log_offset {report.first_log_offset} to {report.end_log_offset}"
    say(f"{report.folder}: {span}, {report.records} records, identity {report.identity or 'not known'}")
    for damage in report.damage:
        _show_damage(say, damage)
    for start, end in report.earlier[:SHOWN_RANGES]:
        say(f"gap: log_offset {start} to {end} ({end - start} bytes), lost at an earlier start or left by a restore")
    if len(report.earlier) > SHOWN_RANGES:
        say(f"gap: {len(report.earlier) - SHOWN_RANGES} ranges more; --json shows them")
    say(MEANING_OF[report.verdict], None if report.verdict == 0 else "bold")


def _show_damage(say: Say, damage: "Damage") -> None:
    where = f" log_offset {damage.start} to {damage.end} ({damage.end - damage.start} bytes)" if damage.end else ""
    say(f"{damage.kind}: {damage.file}{where}: {damage.reason}", "bold red" if damage.verdict == 1 else None)
    for held in damage.held:
        last = held.first_queue_offset + held.messages - 1
        say(f"    held {held.messages} messages of {held.queue}, queue_offset {held.first_queue_offset} to {last}")
    if damage.held_unknown:
        say("    may have held more: the index does not know all of it")
    say(f"    a start {damage.start_does}")
    say(f"    you can do: {damage.do}")
