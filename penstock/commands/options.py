"""Options that several server commands share, and the loading of their settings."""

import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.config.settings import Settings

Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the log and its index.")]
ListenMqtt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", help="Address: mqtt://, mqtts://, ws:// or wss://HOST:PORT, unix:///PATH; may be repeated."
    ),
]
Flush = Annotated[
    str | None,
    typer.Option(
        metavar="sync|async|buffered",
        help="When messages are acknowledged: sync after fdatasync, async from the page cache.",
    ),
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.")]
Admin = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the admin endpoint.")]
LogLevel = Annotated[str | None, typer.Option(metavar="debug|info|warning|error", help="Lowest severity to log.")]
LogFormat = Annotated[str | None, typer.Option(metavar="text|json", help="Form of the log lines.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the settings in force and exit.")]


def collect_when_ready() -> None:
    """Do without garbage collections until `tune_garbage_collection()` makes one: imports would start 130 of them,
    which take 5 to 10 % of a start.
    """
    gc.disable()


def settings_in_force(flags: Mapping[str, object], config: Path | None, print_config: bool) -> "Settings":
    """Load the settings of a command. With --print-config print them and exit. Raises SettingsError."""
    from penstock.config.secret_files import take_open_files
    from penstock.config.settings import load, render

    settings = load(flags, os.environ, config)
    take_open_files(settings.allow_open_files)
    if print_config:
        typer.echo(render(settings), nl=False)
        raise typer.Exit
    return settings
