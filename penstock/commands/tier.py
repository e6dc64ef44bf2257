"""`penstock tier`: the history of a store in an open table."""

from typing import Annotated

import typer

from penstock.commands.options import Config, LogFormat, LogLevel, PrintConfig, settings_in_force
from penstock.errors import UsageError


def tier(
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="The store: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="PLACE", help="Where the history goes: a folder, or s3://BUCKET/PATH."),
    ] = None,
    config: Config = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    print_config: PrintConfig = False,
) -> None:
    """Write the history of a store into one Delta table; with tier.url `penstock serve` starts it by itself.

    It keeps nothing that must survive: the table says how far it is. It shows the store wire.operator_token, or as a
    client wire.client_token.
    """
    flags = {"store": store, "tier.url": url, "log_level": log_level, "log_format": log_format}
    settings = settings_in_force(flags, config, print_config)
    try:
        from penstock.tier.process import serve
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; run: pip install 'penstock[tier]'") from None

    raise typer.Exit(serve(settings))
