"""`penstock cluster`: the replicated log of several stores."""

import json
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
    config: Config = None,
) -> None:
    """Make the topic in which the log lies: one partition, kept for ever, written to a majority of its replicas."""
    settings = _settings(replicated_log, config)
    try:
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
    check(admin.create(replicas), place.topic, settings.store.accept_two_replicas)
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
        show_table(wide_console(), "stores", found["stores"])
        for fault in found["faults"]:
            typer.echo(f"wrong: {fault}")
    if found["faults"]:
        raise typer.Exit(1)


def _settings(replicated_log: str | None, config: Config) -> "Settings":
    settings = settings_in_force({"store.replicated_log": replicated_log}, config, print_config=False)
    if not settings.store.replicated_log:
        raise UsageError("store.replicated_log: not set; say kafka://HOST:9092,HOST:9092/TOPIC")
    return settings
