"""`penstock console`: the HTTP API and the pages, for a store in another process."""

from typing import Annotated

import typer

from penstock.commands.options import Config, LogFormat, LogLevel, PrintConfig, collect_when_ready, settings_in_force


def console(
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="The store: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH.")
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address for browsers and programs.")] = None,
    config: Config = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    print_config: PrintConfig = False,
) -> None:
    """Run the console (HTTP API and pages) for a store; `penstock serve` starts one by itself.

    It keeps nothing that must survive. It shows the store wire.client_token, and for what only operators may do
    wire.operator_token.
    """
    flags = {"store": store, "console.listen": listen, "log_level": log_level, "log_format": log_format}
    settings = settings_in_force(flags, config, print_config)
    collect_when_ready()
    from penstock.console.process import serve

    raise typer.Exit(serve(settings))
