"""`penstock store`: run the store in its own process; inspect and maintain data folders."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.commands.client import Data as ServerData
from penstock.commands.client import Store, TokenFile, connect
from penstock.commands.cluster import EXTRAS
from penstock.commands.options import (
    Admin,
    Config,
    Data,
    Flush,
    LogFormat,
    LogLevel,
    PrintConfig,
    collect_when_ready,
    settings_in_force,
)
from penstock.commands.store_backup import backup, restore
from penstock.commands.store_check import check
from penstock.commands.store_repair import repair
from penstock.commands.tables import show_table, wide_console
from penstock.errors import UsageError, not_installed

store = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
for command in (check, repair, backup, restore):
    store.command()(command)


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
    """Run the store for gateways and clients. The commands below inspect and maintain a data folder."""
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
    collect_when_ready()
    if settings.store.replicated_log:
        try:
            from penstock.cluster.process import serve as serve_in_cluster
        except ModuleNotFoundError as error:
            raise not_installed(error, EXTRAS) from None
        raise typer.Exit(serve_in_cluster(settings))
    from penstock.servers.store_process import serve

    raise typer.Exit(serve(settings))


@store.command()
def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The data folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the contents of a data folder. Exit with 1 if a part is damaged; `penstock store check` says more."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a folder; give the folder of `penstock serve --data`")
    from lightqueue.mending.inspect import inspect_folder

    report = inspect_folder(folder)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _show(report)
    if report["corruption"]:
        raise typer.Exit(1)


@store.command()
def forget_reader(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `penstock store inspect` or the console shows it.")],
    data: ServerData = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
) -> None:
    """Have retention no longer wait for a reader of the log. What it has not read may be gone when it comes back."""
    from penstock.operating import check_found, who
    from store.wire.operator_messages import ForgetLogReader, OperatorDone

    with connect(data, store, token_file, config) as server:
        done = server.call(ForgetLogReader(name, who()), OperatorDone)
    check_found(done.found, f"reader {name} of the log", "penstock store inspect DIR")
    typer.echo(f"retention no longer waits for {name}")


def _show(report: dict[str, Any]) -> None:
    console = wide_console()
    first, end = report["first_log_offset"], report["end_log_offset"]
    console.print(f"log_offset {first} to {end}, applied to {report['applied_offset']}")
    show_table(console, "segments", report["segments"])
    records = [{"type": kind, "records": count} for kind, count in report["records"].items()]
    show_table(console, "records", records)
    show_table(console, "queues", report["queues"])
    show_table(console, "sessions", report["sessions"])
    show_table(console, "groups", report["groups"])
    show_table(console, "readers of the log", report["readers"])
    if report.get("delayed_pending"):
        console.print(f"delayed messages pending: {report['delayed_pending']}")
    if report.get("torn_tail_bytes"):
        console.print(f"torn tail: {report['torn_tail_bytes']} bytes that the next start cuts off")
    for damage in report["corruption"]:
        console.print(f"corruption: {damage}", style="bold red", markup=False)
    if report["corruption"]:
        console.print("`penstock store check` says what is damaged and what to do")
