"""`penstock cluster`: the replicated log of several stores."""

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.commands.options import Config, settings_in_force
from penstock.commands.tables import show_table, wide_console
from penstock.errors import UsageError, not_installed

if TYPE_CHECKING:
    from penstock.config.settings import Settings

EXTRAS = {"confluent_kafka": "kafka"}
"""The package that the replicated log needs, and the extra that has it."""

cluster = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The replicated log that several stores share.",
)

Topic = Annotated[
    str | None,
    typer.Option("--replicated-log", metavar="URL", help="kafka://HOST:9092,HOST:9092/TOPIC; as store.replicated_log."),
]


@cluster.command()
def create(
    replicated_log: Topic = None,
    replicas: Annotated[int, typer.Option(min=2, max=7, help="On how many brokers Kafka keeps the log.")] = 3,
    history: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Begin with the log of this data folder, whose store is stopped."),
    ] = None,
    config: Config = None,
) -> None:
    """Make the topic in which the log lies: one partition, kept for ever, written to a majority of its replicas."""
    settings = _settings(replicated_log, config, history)
    try:
        from penstock.cluster.beginning import begin_with, history_of
        from penstock.cluster.place import replicated_place
        from penstock.cluster.topic import TopicAdmin, check
    except ModuleNotFoundError as error:
        raise not_installed(error, EXTRAS) from None
    place = replicated_place(settings)
    if replicas == 2 and not settings.store.accept_two_replicas:
        raise UsageError("--replicas 2: store.accept_two_replicas says what that risks; set it, or have 3 replicas")
    admin = TopicAdmin(place)
    if admin.describe() is not None:
        raise UsageError(f"store.replicated_log: topic {place.topic} of Kafka is there already; name another one")
    found = history_of(history, settings) if history is not None else None
    topic = check(admin.create(replicas), place.topic, settings.store.accept_two_replicas)
    if history is not None and found is not None:
        begin_with(history, found, place, topic)
        typer.echo(f"the log goes on behind log_offset {found.end} of {history}; the other stores copy what is before")
    typer.echo(f"topic {place.topic} with {replicas} replicas is there; start the stores with store.replicated_log")


@cluster.command()
def status(
    replicated_log: Topic = None,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show who leads, how far each store is, and what is wrong. Exit with 1 if something is.

    Stores say how far they are every 5 s.
    """
    settings = _settings(replicated_log, config)
    try:
        from penstock.cluster.status import status as status_of
    except ModuleNotFoundError as error:
        raise not_installed(error, EXTRAS) from None
    found = status_of(settings)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        silent = f", newest frame {found['silent_s']} s ago" if found["silent_s"] is not None else ""
        typer.echo(
            f"topic {found['topic']}: offsets {found['first']} to {found['end']}, log_offset {found['log_end']}, epoch "
            f"{found['epoch']}, leader {found['leader'] or 'unknown'}{silent}"
        )
        rows = [{name: value for name, value in row.items() if name != "copying"} for row in found["stores"]]
        show_table(wide_console(), "stores", rows)
        for row in found["stores"]:
            if copying := row["copying"]:
                source = copying["from"] or "a store that it looks for"
                typer.echo(
                    f"{row['store']} copies the log of {source}: {copying['done_bytes']} of {copying['of_bytes']} bytes"
                )
        for fault in found["faults"]:
            typer.echo(f"wrong: {fault}")
    if found["faults"]:
        raise typer.Exit(1)


@cluster.command()
def recover(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The data folder of a store that is stopped.")],
    replicated_log: Topic = None,
    give_up_own: Annotated[
        bool, typer.Option("--give-up-own", help="Also if this store has what the store that leads has not.")
    ] = False,
    config: Config = None,
) -> None:
    """Say why a store cannot follow its topic any more, or what of it is damaged; copy the log of the store that leads.

    It changes nothing if this store's log has anything that the other one has not: then exit with 3. With
    --give-up-own that log is kept beside the copy.
    """
    settings = _settings(replicated_log, config, folder)
    try:
        from penstock.cluster.recovering import recover as recover_store
    except ModuleNotFoundError as error:
        raise not_installed(error, EXTRAS) from None
    recover_store(settings, settings.cluster.name or socket.gethostname(), give_up_own, typer.echo)


def _settings(replicated_log: str | None, config: Config, data: Path | None = None) -> "Settings":
    """`data`: the data folder, if the command is about one."""
    given = {"store.replicated_log": replicated_log, "store.data": data}
    settings = settings_in_force(given, config, print_config=False)
    if not settings.store.replicated_log:
        raise UsageError("store.replicated_log: not set; say kafka://HOST:9092,HOST:9092/TOPIC")
    return settings
