"""`penstock flow`: run flows, try them, list, pause and resume them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.commands.group import Json, Store, pause_group, rows_of_groups, without_empty
from penstock.commands.options import Config, LogFormat, LogLevel, settings_in_force
from penstock.commands.tables import show_table, wide_console
from penstock.errors import not_installed
from penstock.flows import GROUP_PREFIX

if TYPE_CHECKING:
    from penstock.config.settings import Settings

flow = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Send messages on: run flows, try, list, pause and resume them."
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Flows in TOML (docs/flows.md).")]
Name = Annotated[str, typer.Argument(metavar="FLOW", help="Name of the flow.")]
EXTRAS = {
    "cel_expr_python": "flows",
    "cloudevents": "flows",
    "confluent_kafka": "flows,kafka",
    "aio_pika": "flows,amqp",
}
NO_FLAGS: Mapping[str, object] = {}


def _settings(store: str | None, config: Path | None, flags: Mapping[str, object] = NO_FLAGS) -> "Settings":
    """The settings. A store's address may also be as clients know it."""
    if store is not None:
        store = store.replace("penstock://", "tcp://").replace("penstocks://", "tls://")
    return settings_in_force({"store": store, **flags}, config, print_config=False)


@flow.command()
def run(
    file: File,
    store: Store = None,
    config: Config = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run all flows of a file until it is stopped. A wrong flow is told before anything starts."""
    settings = _settings(store, config, {"log_level": log_level, "log_format": log_format})
    try:
        from penstock.flows.process import serve

        code = serve(settings, file)  # what only some flows need is imported there
    except ModuleNotFoundError as error:
        raise not_installed(error, EXTRAS) from None
    raise typer.Exit(code)


@flow.command("test")
def try_flows(
    file: File,
    name: Annotated[str | None, typer.Option("--flow", metavar="FLOW", help="Only this flow.")] = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many of the newest messages.")] = 100,
    store: Store = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show what flows would do with the newest messages. Nothing is sent, and no position moves."""
    settings = _settings(store, config)
    try:
        from penstock.flows.trial import trials

        found = trials(settings, file, name, count)
    except ModuleNotFoundError as error:
        raise not_installed(error, EXTRAS) from None
    if as_json:
        typer.echo(json.dumps(found))
        return
    for trial in found:
        show_table(wide_console(), f"{trial['flow']}: {trial['from']} -> {trial['to']}", trial["messages"])
        numbers = (
            f"{trial['passed']} would be sent, {trial['left_out']} are left out, {trial['dead']} would be dead letters"
        )
        typer.echo(f"{trial['flow']}: of {trial['looked_at']} messages {numbers}; it begins {trial['begins']}")


@flow.command("list")
def list_flows(store: Store = None, config: Config = None, as_json: Json = False) -> None:
    """Show the flows that a store knows: lag, messages in flight, retries, dead letters, what they sent, errors."""
    rows = [
        {"flow": row.pop("group").removeprefix(GROUP_PREFIX), **row}
        for row in rows_of_groups(store, config)
        if str(row["group"]).startswith(GROUP_PREFIX)
    ]
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        show_table(wide_console(), "flows", without_empty(rows))


@flow.command()
def pause(name: Name, store: Store = None, config: Config = None) -> None:
    """Have a flow send nothing more. It stays paused when it is started again."""
    pause_group(GROUP_PREFIX + name, None, store, config, paused=True)


@flow.command()
def resume(name: Name, store: Store = None, config: Config = None) -> None:
    """Have a paused flow go on."""
    pause_group(GROUP_PREFIX + name, None, store, config, paused=False)
