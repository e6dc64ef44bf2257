"""`penstock store`: the store as a process of its own; `penstock store inspect`: a look into a data folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.commands.options import (
    Admin,
    Config,
    Data,
    Flush,
    LogFormat,
    LogLevel,
    PrintConfig,
    settings_in_force,
)
from penstock.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

store = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

# Without a terminal rich would cut names at 80 columns.
WIDTH_IN_A_PIPE = 200


@store.callback()
def run(
    context: typer.Context,
    data: Data = None,
    listen: Annotated[
        str | None, typer.Option(metavar="URL", help="Address such as tcp://127.0.0.1:7700 or unix:///PATH.")
    ] = None,
    flush: Flush = None,
    config: Config = None,
    admin: Admin = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    print_config: PrintConfig = False,
) -> None:
    """Run the store for gateways and clients that connect to it; or look into a data folder with `inspect`."""
    if context.invoked_subcommand is not None:
        return
    flags = {
        "data": data,
        "wire.listen": listen,
        "flush": flush,
        "admin": admin,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = settings_in_force(flags, config, print_config)
    from penstock.store_process import serve

    raise typer.Exit(serve(settings))


@store.command()
def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The data folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a data folder holds; exit 1 if any of it is damaged."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a folder; name the one given to `penstock serve --data`")
    from lightqueue.inspect import inspect_folder

    report = inspect_folder(folder)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _show(report)
    if report["corruption"]:
        raise typer.Exit(1)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_IN_A_PIPE)
    first, end = report["first_log_offset"], report["end_log_offset"]
    console.print(f"log_offset {first} to {end}, applied to {report['applied_offset']}")
    _show_table(console, "segments", report["segments"])
    records = [{"type": kind, "records": count} for kind, count in report["records"].items()]
    _show_table(console, "records", records)
    _show_table(console, "queues", report["queues"])
    _show_table(console, "sessions", report["sessions"])
    if report.get("delayed_pending"):
        console.print(f"delayed messages pending: {report['delayed_pending']}")
    if report.get("torn_tail_bytes"):
        console.print(f"torn tail: {report['torn_tail_bytes']} bytes that the next start will cut")
    for damage in report["corruption"]:
        console.print(f"corruption: {damage}", style="bold red", markup=False)


def _show_table(console: "Console", title: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{title} ({len(rows)})", title_justify="left")
    if not rows:
        console.print(table.title)
        return
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, int) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
