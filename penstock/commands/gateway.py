"""`penstock gateway`: an MQTT gateway for a store in another process."""

from typing import Annotated

import typer

from penstock.commands.options import (
    Admin,
    Config,
    ListenMqtt,
    LogFormat,
    LogLevel,
    PrintConfig,
    collect_when_ready,
    settings_in_force,
)


def gateway(
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="The store: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH.")
    ] = None,
    listen: ListenMqtt = None,
    config: Config = None,
    admin: Admin = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    print_config: PrintConfig = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Start and connect to the store, but listen only once SIGUSR1 comes.")
    ] = False,
) -> None:
    """Run an MQTT gateway for a store that `penstock store` runs.

    It keeps nothing that must survive: end it, and its clients go on at another one.
    """
    flags = {"store": store, "listen": listen, "admin": admin, "log_level": log_level, "log_format": log_format}
    settings = settings_in_force(flags, config, print_config)
    collect_when_ready()
    from penstock.servers.gateway_process import serve

    raise typer.Exit(serve(settings, standby))
