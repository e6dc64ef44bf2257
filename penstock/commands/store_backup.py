"""`penstock store backup` and `penstock store restore`: copies of a data folder, also of a running server."""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.commands.options import Config
from penstock.commands.progress import shown
from penstock.commands.store_check import Folder, Json, check_is_folder
from penstock.errors import PenstockError, SettingsError, UsageError

if TYPE_CHECKING:
    from store.mending.restore import Restored

SHOWN = 20

Target = Annotated[Path, typer.Argument(metavar="TARGET", help="The folder of the backup.")]


class Damaged(PenstockError):
    """The copy is complete, but its source is damaged."""


class RestoredInPart(PenstockError):
    """The data folder is there, without what the backup lacks by now."""

    exit_code = 3


def backup(
    folder: Folder,
    target: Target,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete segments from TARGET that retention has dropped from DIR.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring TARGET up to date with a data folder, whether or not a server runs on it.

    Sealed segments that TARGET already has are not read again. New ones are linked on the same file system, else
    copied. The newest is copied up to the position that the disk has confirmed. Exit code: 0; 1 if the backup failed,
    or its source is damaged.
    """
    check_is_folder(folder)
    if target.resolve() == folder.resolve() or folder.resolve() in target.resolve().parents:
        raise UsageError(f"{target}: is inside the data folder")
    from store.mending.backup import backup as back_up

    os.umask(0o077)
    with shown("backup") as on_progress:
        done = back_up(folder, target, prune, on_progress)
    manifest = done.manifest
    if as_json:
        said: dict[str, object] = {
            "first": manifest.base,
            "end": manifest.end,
            "linked": done.linked,
            "copied": done.copied,
        }
        said |= {"copied_bytes": done.copied_bytes, "kept": done.kept}
        said |= {"damaged": done.damaged, "missing": manifest.missing, "checkpoint_fault": done.checkpoint_fault}
        typer.echo(json.dumps(said))
    else:
        typer.echo(
            f"{target}: log_offset {manifest.base} to {manifest.end}; {done.kept} segments were there, {done.linked} "
            f"linked, {done.copied} copied ({done.copied_bytes} bytes)"
        )
    _warn(target, manifest.missing)
    faults = [f"damaged at log_offset {_listed(done.damaged)}"] if done.damaged else []
    if done.checkpoint_fault:
        kept = f"the backup keeps its {manifest.checkpoint}" if manifest.checkpoint else "the backup has none"
        faults.append(f"its index-checkpoint does not read back ({done.checkpoint_fault}), so {kept}")
    if faults:
        raise Damaged(f"{folder}: {'; '.join(faults)}; `penstock store check` says what to do")


def restore(
    target: Target,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new data folder. It must be missing or empty.")],
    to: Annotated[
        int | None, typer.Option(metavar="LOG_OFFSET", min=0, help="Restore only records before this position.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Restore only records stored by this time: 2026-11-22T15:00:00.")
    ] = None,
    skip_bytes: Annotated[
        int | None,
        typer.Option(
            "--skip-bytes", min=0, help="More bytes than were stored since the backup; 0 if none were. Default: 1 GiB."
        ),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Create a data folder from a backup, with a new identity. No log_offset after the restored point is used again.

    It warns if the settings have a tier.url: a start takes the table there over from the log that was backed up.

    Exit code: 0; 3 if the backup is damaged or lacks a file: the folder is there, without what the backup lacks, which
    is named, and a start serves all that is intact; 1 if it failed, and there is no folder.
    """
    from store.mending.restore import SKIP_BYTES
    from store.mending.restore import restore as bring_back

    at_ms = _unix_ms(at) if at is not None else None
    tier_url = _tier_url(config)
    os.umask(0o077)
    with shown("restore") as on_progress:
        done = bring_back(target, folder, to, at_ms, SKIP_BYTES if skip_bytes is None else skip_bytes, on_progress)
    if as_json:
        said: dict[str, object] = {
            "first": done.first,
            "end": done.end,
            "next": done.next,
            "identity": done.identity.hex(),
        }
        damaged = [(hole.start, hole.end) for hole in done.damaged]
        said |= {"damaged": damaged, "missing": done.missing, "lost": done.lost, "without_index": done.without_index}
        typer.echo(json.dumps(said))
    else:
        typer.echo(
            f"{folder}: log_offset {done.first} to {done.end}; new records come from {done.next} on, "
            f"identity {done.identity.hex()}"
        )
    _warn(target, done.missing)
    if tier_url:
        typer.echo(
            f"{folder}: a start with tier.url {tier_url} takes the table there over, which then refuses the store that "
            "was backed up; for a trial, set another tier.url or none",
            err=True,
        )
    if faults := list(_faults(done)):
        remedy = "another backup of this log may have it"
        raise RestoredInPart(f"{target}: is not whole: {'; '.join(faults)}; {folder} has all the rest; {remedy}")


def _tier_url(config: Path | None) -> str:
    """That a start would have. What is wrong with the environment is for that start to say: here it is no obstacle."""
    from penstock.config.settings import load

    try:
        return load({}, os.environ, config).tier.url
    except SettingsError:
        if config is not None:
            raise
        return ""


def _faults(done: "Restored") -> Iterator[str]:
    if done.damaged:
        yield f"damaged at log_offset {_listed([(hole.start, hole.end) for hole in done.damaged])}"
    if done.lost:
        yield f"the files of log_offset {_listed(done.lost)} are missing"
    if done.without_index:
        before = f"sessions, groups and queue offsets from before log_offset {done.first} are lost"
        yield f"{done.without_index}, so {before}"


def _warn(target: Path, missing: list[tuple[int, int]]) -> None:
    if missing:
        why = "retention dropped it before it was backed up, so a start calls it lost; back up more often, or keep more"
        typer.echo(f"{target}: has no log_offset {_listed(missing)}: {why}", err=True)


def _listed(ranges: list[tuple[int, int]]) -> str:
    return ", ".join(f"{start} to {end}" for start, end in ranges[:SHOWN])


def _unix_ms(text: str) -> int:
    """Of an ISO 8601 time, which is local unless it says otherwise. Raises UsageError."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000) + (0 if "." in text else 999)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text!r} is not a time; write it as 2026-11-22T15:00:00+00:00") from error
