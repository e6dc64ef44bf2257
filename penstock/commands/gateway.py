"""`penstock gateway`: MQTT for a store that runs as another process."""

import os
from pathlib import Path
from typing import Annotated

import typer


def gateway(
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="The store: tcp://HOST:PORT or unix:///PATH.")
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Address such as mqtt://127.0.0.1:1883; may be repeated."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.")] = None,
    admin: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the admin endpoint.")] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="debug|info|warning|error", help="Least severe lines to log."),
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="text|json", help="Form of the log lines.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings in force and exit.")] = False,
) -> None:
    """Run a gateway for a store that `penstock store` runs.

    It keeps nothing that must survive: end it, and its clients go on at another one.
    """
    from penstock.settings import load, render

    flags = {"store": store, "listen": listen, "admin": admin, "log_level": log_level, "log_format": log_format}
    settings = load(flags, os.environ, config)
    if print_config:
        typer.echo(render(settings), nl=False)
        return
    from penstock.gateway_process import serve

    raise typer.Exit(serve(settings))
