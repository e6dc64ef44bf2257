"""The `penstock` command. Of the commands only the one that is asked for is imported, and it imports what is slow to
import only when it runs: importing all of them would take a tenth of the time that a server needs to start."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from penstock.errors import PenstockError
from store.version import VERSION

COMMANDS = (
    *("init", "serve", "gateway", "store"),
    *("pub", "sub", "passwd", "group", "delayed", "client", "ban", "bench", "chaos"),
)
"""Each is what its module in penstock/commands calls so: a function, or a Typer with commands of its own."""

LEAVES = (
    "store.records._records",
    "lightqueue.queues._queues",
    "gateway.mqtt._inflight",
    "gateway.mqtt._mqtt",
    "loadtest.devices._swarm",
)
CLIENT_ONLY = (
    "without a C compiler only the client was installed: install one (apt-get install gcc), "
    "then `pip install --force-reinstall .`"
)


def main() -> None:
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for some takes longer than to read settings
    try:
        app_for(sys.argv[1:])(prog_name="penstock")
    except SystemExit:
        raise  # Here, so that package_errors() below imports the packages only for a real error.
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
    """The bases of what the packages raise for the user to read, without a traceback."""
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


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """With the command that they begin with, or with all commands if it is none: for the help, or for a mistake."""
    # No rich markup: help stays quick and errors stay plain lines that scripts can read.
    app = typer.Typer(
        help=options.__doc__,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    for name in set(arguments[:1]).intersection(COMMANDS) or COMMANDS:
        command = getattr(import_module(f"penstock.commands.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    return app


def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """An MQTT gateway over a message store."""
