"""The `penstock` command.

It imports only the given command, which imports slow modules when it runs: importing all commands would take a tenth of
a server's start.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from penstock.errors import PenstockError
from store.version import VERSION

COMMANDS = (
    *("init", "serve", "gateway", "store", "cluster", "console", "tier", "flow", "upgrade", "migrate"),
    *("pub", "sub", "passwd", "trace", "group", "delayed", "client", "ban", "bench", "chaos"),
)
"""The module in penstock/commands of each name has a function, or a Typer with subcommands, of that name."""

LEAVES = (
    "store.files._mapping",
    "store.records._records",
    "lightqueue.queues._queues",
    "gateway.mqtt._addresses",
    "gateway.mqtt._dealt",
    "gateway.mqtt._held",
    "gateway.mqtt._inflight",
    "gateway.mqtt._mqtt",
    "gateway.mqtt._publish",
    "gateway.mqtt._tenants",
    "loadtest.devices._swarm",
)
CLIENT_ONLY = (
    "without a C compiler only the client was installed: install one (apt-get install gcc), "
    "then `pip install --force-reinstall .`"
)


def main() -> None:
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # a search for plugins is slower than reading settings
    try:
        app_for(sys.argv[1:])(prog_name="penstock")
    except SystemExit:
        raise  # here, so that package_errors() imports the packages only for a real error
    except PenstockError as error:
        fail(error, error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in LEAVES:
            raise
        fail(PenstockError(f"{error.name} is not compiled; {CLIENT_ONLY}"), exit_code=1)
    except package_errors() as error:
        fail(error, exit_code=1)


def fail(error: Exception, exit_code: int) -> NoReturn:
    print(f"penstock: {error}", file=sys.stderr)
    sys.exit(exit_code)


def package_errors() -> tuple[type[Exception], ...]:
    """The base classes of the packages' errors that the user sees without a traceback."""
    from gateway.mqtt.errors import GatewayError
    from lightqueue.errors import LightQueueError
    from loadtest.errors import LoadTestError
    from notify.errors import NotifyError
    from store.errors import StoreError

    return (StoreError, LightQueueError, NotifyError, GatewayError, LoadTestError)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {VERSION}")
        raise typer.Exit


def version() -> None:
    """Print the version."""
    show_version(wanted=True)


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The app with the command that the arguments begin with, or with all commands for help and for mistakes."""
    # No rich markup: help stays quick, and errors stay plain lines that scripts can read.
    app = typer.Typer(
        help=options.__doc__,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    named = set(arguments[:1])
    for name in named.intersection(COMMANDS) or (() if named == {"version"} else COMMANDS):
        command = getattr(import_module(f"penstock.commands.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    app.command()(version)
    return app


def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """An MQTT gateway over a message store."""
