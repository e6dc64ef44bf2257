"""The `penstock` command. Anything slow to import is imported by the subcommand that needs it."""

import sys
from typing import Annotated, NoReturn

import typer

from penstock.commands.bench import bench
from penstock.commands.chaos import chaos
from penstock.commands.delayed import delayed
from penstock.commands.gateway import gateway
from penstock.commands.group import group
from penstock.commands.passwd import passwd
from penstock.commands.pub import pub
from penstock.commands.serve import serve
from penstock.commands.store import store
from penstock.commands.sub import sub
from penstock.errors import PenstockError

# No rich markup: help stays quick and errors stay plain lines that scripts can read.
app = typer.Typer(
    help="An MQTT gateway over a message store.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(gateway)
app.command()(pub)
app.command()(sub)
app.command()(passwd)
app.command()(chaos)
app.add_typer(store, name="store")
app.add_typer(group, name="group")
app.add_typer(bench, name="bench")
app.add_typer(delayed, name="delayed")

LEAVES = ("store._records", "lightqueue._queues", "gateway._inflight", "gateway._wire", "loadtest._swarm")
CLIENT_ONLY = (
    "without a C compiler only the client was installed: install one (apt-get install gcc), "
    "then `pip install --force-reinstall .`"
)


def main() -> None:
    try:
        app(prog_name="penstock")
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
    from gateway.errors import GatewayError
    from lightqueue.errors import LightQueueError
    from loadtest.errors import LoadTestError
    from notify.errors import NotifyError
    from store.errors import StoreError

    return (StoreError, LightQueueError, NotifyError, GatewayError, LoadTestError)


def show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"penstock {version('penstock')}")
    except PackageNotFoundError:
        raise PenstockError("not installed, so without a version; run `pip install .`") from None
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """An MQTT gateway over a message store."""
