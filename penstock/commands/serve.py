"""`penstock serve`: everything in one process."""

import os
from pathlib import Path
from typing import Annotated

import typer


def serve(
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the log and its index.")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Address such as mqtt://127.0.0.1:1883; may be repeated."),
    ] = None,
    flush: Annotated[
        str | None,
        typer.Option(metavar="sync|async|buffered", help="When a message is acknowledged."),
    ] = None,
    gateways: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Run a store and N gateways as processes of their own; 0: all in one."),
    ] = 0,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.")] = None,
    admin: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the admin endpoint.")] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="debug|info|warning|error", help="Least severe lines to log."),
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="text|json", help="Form of the log lines.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings in force and exit.")] = False,
) -> None:
    """Run the gateway and the store, in one process unless --gateways says otherwise.

    Every setting can also come from the environment (PENSTOCK_FLUSH, PENSTOCK_STORE__FLUSH) or
    from the file; a flag wins over the environment, which wins over the file.
    """
    from penstock.settings import load, render

    flags = {
        "data": data,
        "listen": listen,
        "flush": flush,
        "admin": admin,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = load(flags, os.environ, config)
    if print_config:
        typer.echo(render(settings), nl=False)
        return
    if gateways:
        from penstock.supervisor import serve as supervise

        raise typer.Exit(supervise(settings, gateways))
    from penstock.server import serve as run

    raise typer.Exit(run(settings))
