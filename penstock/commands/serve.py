"""`penstock serve`: everything in one process."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.commands.options import (
    Admin,
    Config,
    Data,
    Flush,
    ListenMqtt,
    LogFormat,
    LogLevel,
    PrintConfig,
    collect_when_ready,
    settings_in_force,
)
from penstock.errors import UsageError


def serve(
    data: Data = None,
    listen: ListenMqtt = None,
    flush: Flush = None,
    gateways: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Run a store and N gateways, each in its own process; 0: everything in one process.",
        ),
    ] = 0,
    config: Config = None,
    admin: Admin = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    print_config: PrintConfig = False,
    no_console: Annotated[
        bool, typer.Option("--no-console", help="Do not start the console (HTTP API and pages).")
    ] = False,
    flows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run the flows of this file beside it (docs/flows.md).")
    ] = None,
) -> None:
    """Run the gateway and the store, in one process unless --gateways says otherwise.

    Every setting can also come from the environment (PENSTOCK_FLUSH, PENSTOCK_STORE__FLUSH) or
    from the file; a flag wins over the environment, which wins over the file.
    """
    flags = {
        "data": data,
        "listen": listen,
        "flush": flush,
        "admin": admin,
        "log_level": log_level,
        "log_format": log_format,
        "console.enabled": False if no_console else None,
        "flows.file": flows,
    }
    settings = settings_in_force(flags, config, print_config)
    if settings.store.replicated_log:
        raise UsageError(
            "store.replicated_log: `penstock serve` runs one store alone; run `penstock store` on each machine of the "
            "cluster, and `penstock gateway` beside them"
        )
    if gateways:
        from penstock.servers.supervisor import serve as supervise

        raise typer.Exit(supervise(settings, gateways))
    collect_when_ready()
    from penstock.servers.server import serve as run

    raise typer.Exit(run(settings))
