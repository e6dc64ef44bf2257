"""`penstock group`: make, list, move, pause and drop the consumer groups of a running store."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec.structs import replace

from penstock.commands.options import Config, settings_in_force
from penstock.commands.tables import show_table, wide_console
from penstock.errors import PenstockError, UsageError
from store.state.group_settings import Strategy

if TYPE_CHECKING:
    from penstock.store_client import StoreClient
    from store.state.consumer_work import ConsumerWork
    from store.wire.group_messages import GroupInfo

group = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make, list, move, pause and drop consumer groups."
)

T = TypeVar("T")
Store = Annotated[
    str | None, typer.Option(metavar="URL", help="The store: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH.")
]
Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Filter = Annotated[
    str | None,
    typer.Option("--filter", metavar="TOPIC_FILTER", help="Filter of the group, if several groups have the name."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connect(store: str | None, config: Path | None) -> "StoreClient":
    """Connect to the store that the settings name: gateway.store, or else wire.listen."""
    settings = settings_in_force({"store": store}, config, print_config=False)
    from notify.links.address import StoreAddress
    from penstock.config.credentials import tls_of_gateway, token_of_command
    from penstock.store_client import StoreClient

    address = StoreAddress.parse(settings.gateway.store or settings.wire.listen)
    role, token = token_of_command(settings.wire, settings.gateway)
    return StoreClient(address, token, tls_of_gateway(address, settings.gateway), role)


@group.command("list")
def list_groups(store: Store = None, config: Config = None, as_json: Json = False) -> None:
    """Show all groups: tags, lag, messages in flight, retries, dead letters; of flows what they sent, and errors."""
    rows = rows_of_groups(store, config)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        show_table(wide_console(), "groups", without_empty(rows))


def without_empty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what few groups have, where none of them has it."""
    left_out = {name for name in _OF_FEW if all(row.get(name) is None for row in rows)}
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows]


def rows_of_groups(store: str | None, config: Path | None) -> list[dict[str, Any]]:
    """All groups of a store, as tables have them."""
    with connect(store, config) as client:
        return _rows(client, _groups(client, ""))


@group.command()
def show(name: Name, store: Store = None, config: Config = None, as_json: Json = False) -> None:
    """Show the groups of one name, with their settings and consumers."""
    with connect(store, config) as client:
        found = _groups(client, name)
        rows = _rows(client, found)
    if not found:
        raise PenstockError(f"there is no group {name}; see `penstock group list`")
    if as_json:
        typer.echo(json.dumps([row | _details(each) for row, each in zip(rows, found, strict=True)]))
        return
    console = wide_console()
    for row, each in zip(rows, found, strict=True):
        details = _details(each)
        show_table(console, f"{each.group} over {each.topic_filter}", [row])
        show_table(console, "settings", [details["settings"]])
        show_table(console, f"consumers ({each.consumers} in all)", details["consumers"])


@group.command()
def reset(
    name: Name,
    to: Annotated[
        str, typer.Option(metavar="WHERE", help="earliest, latest, -1h, an RFC 3339 time, or a queue_offset.")
    ],
    topic_filter: Filter = None,
    store: Store = None,
    config: Config = None,
) -> None:
    """Move a group to another position. Its consumers lose the messages that they hold."""
    from store.wire.group_messages import GroupDone, GroupReset

    with connect(store, config) as client:
        found = _the_one(client, name, topic_filter)
        done = client.call(GroupReset(name, found.topic_filter, to), GroupDone)
    typer.echo(f"{name} over {found.topic_filter} continues at queue_offset {done.queue_offset} of {found.next_offset}")


@group.command()
def make(
    name: Name,
    topic_filter: Annotated[str, typer.Argument(metavar="TOPIC_FILTER", help="The messages that it has.")],
    tag: Annotated[
        str,
        typer.Option(
            metavar="A||B", help="Those with one of these tags alone; `A > B > *`: A first, then B, then all."
        ),
    ] = "",
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="earliest, latest, -1h, an RFC 3339 time, or a queue_offset.")
    ] = "latest",
    store: Store = None,
    config: Config = None,
) -> None:
    """Make a group before its first consumer comes, so that it misses nothing from now on."""
    from store.state.group_settings import BadTags, tags_of
    from store.wire.group_messages import GroupClose, GroupOpen, GroupOpened
    from store.wire.handshake import tags_version

    try:
        tags_of(tag)
    except (BadTags, UnicodeError) as error:
        raise UsageError(f"--tag: {error}") from None
    with connect(store, config) as client:
        if any(each.topic_filter == topic_filter for each in _groups(client, name)):
            raise PenstockError(f"there is a group {name} over {topic_filter}; see `penstock group show {name}`")
        if tag and client.version < tags_version(tag):
            raise PenstockError("this store is older than these tags; upgrade it")
        request = GroupOpen(name, topic_filter, "penstock group make", None, start, tag=tag)
        client.tell(GroupClose(client.call(request, GroupOpened).ref))
    typer.echo(f"{name} over {topic_filter} begins at {start}" + (f", tag {tag}" if tag else ""))


@group.command("set")
def set_(
    name: Name,
    strategy: Annotated[Strategy, typer.Option(help="Which of the waiting consumers gets the next message.")],
    topic_filter: Filter = None,
    store: Store = None,
    config: Config = None,
) -> None:
    """Change how a group distributes messages to its consumers."""
    from store.wire.group_messages import GroupClose, GroupOpen, GroupOpened

    with connect(store, config) as client:
        found = _the_one(client, name, topic_filter)
        if found.settings.partitions:
            raise UsageError(
                f"{name} over {found.topic_filter} is ordered: its partitions decide which consumer gets a message"
            )
        settings = replace(found.settings, strategy=strategy)
        request = GroupOpen(name, found.topic_filter, "penstock group set", settings, "latest")
        client.tell(GroupClose(client.call(request, GroupOpened).ref))
    typer.echo(f"{name} over {found.topic_filter} deals {strategy}")


@group.command()
def pause(name: Name, topic_filter: Filter = None, store: Store = None, config: Config = None) -> None:
    """Stop a group from handing out messages. Its consumers keep, and may settle, those that they hold."""
    pause_group(name, topic_filter, store, config, paused=True)


@group.command()
def resume(name: Name, topic_filter: Filter = None, store: Store = None, config: Config = None) -> None:
    """Have a paused group hand out messages again."""
    pause_group(name, topic_filter, store, config, paused=False)


def pause_group(name: str, topic_filter: str | None, store: str | None, config: Path | None, paused: bool) -> None:
    from store.wire.group_messages import GroupDone, GroupPause

    with connect(store, config) as client:
        if not _can_pause(client):
            raise PenstockError("this store cannot pause groups; upgrade it")
        found = _the_one(client, name, topic_filter)
        done = client.call(GroupPause(name, found.topic_filter, paused), GroupDone)
    what = "is paused" if paused else "goes on"
    typer.echo(f"{name} over {found.topic_filter} {what} at queue_offset {done.queue_offset} of {found.next_offset}")


@group.command()
def drop(name: Name, topic_filter: Filter = None, store: Store = None, config: Config = None) -> None:
    """Delete a group without consumers, with its position."""
    from store.wire.group_messages import GroupDone, GroupDrop

    with connect(store, config) as client:
        found = _the_one(client, name, topic_filter)
        client.call(GroupDrop(name, found.topic_filter), GroupDone)
    typer.echo(f"{name} over {found.topic_filter} is forgotten")


def _can_pause(client: "StoreClient") -> bool:
    from store.wire.handshake import PAUSING_VERSION

    return client.version >= PAUSING_VERSION


def _rows(client: "StoreClient", found: "list[GroupInfo]") -> list[dict[str, Any]]:
    paused: set[tuple[str, str]] = set()
    if _can_pause(client):
        paused = {(each.group, each.topic_filter) for each in _groups(client, "", paused=True)}
    works, tags = _works(client), _tags(client)
    keys = [(each.group, each.topic_filter) for each in found]
    return [_row(each, tags.get(key), key in paused, works.get(key)) for each, key in zip(found, keys, strict=True)]


def _works(client: "StoreClient") -> "dict[tuple[str, str], ConsumerWork]":
    """What consumers, which flows are, tell of their work, by group."""
    from store.wire.group_messages import GroupWork, ListWork, WorkListed
    from store.wire.handshake import WORK_VERSION

    if client.version < WORK_VERSION:
        return {}

    def page(skip: int) -> tuple[list[GroupWork], bool]:
        answer = client.call(ListWork("", skip), WorkListed)
        return answer.works, answer.more

    return {(each.group, each.topic_filter): each.work for each in _all_of(page)}


def _tags(client: "StoreClient") -> "dict[tuple[str, str], str]":
    """The tags of groups that have some."""
    from store.wire.group_messages import GroupTags, ListTags, TagsListed
    from store.wire.handshake import LASTING_VERSION

    if client.version < LASTING_VERSION:
        return {}

    def page(skip: int) -> tuple[list[GroupTags], bool]:
        answer = client.call(ListTags("", skip), TagsListed)
        return answer.tags, answer.more

    return {(each.group, each.topic_filter): each.tag for each in _all_of(page)}


def _groups(client: "StoreClient", name: str, paused: bool = False) -> "list[GroupInfo]":
    """`paused`: those alone that are."""
    from store.wire.group_messages import GroupList, GroupsListed, PausedGroups

    request = PausedGroups if paused else GroupList

    def page(skip: int) -> "tuple[list[GroupInfo], bool]":
        answer = client.call(request(name, skip), GroupsListed)
        return answer.groups, answer.more

    return _all_of(page)


def _all_of(page: Callable[[int], tuple[list[T], bool]]) -> list[T]:
    """All items of a list of the store; `page` asks for those after so many, and says whether more follow."""
    found: list[T] = []
    more = True
    while more:
        items, more = page(len(found))
        found += items
        more = more and bool(items)
    return found


def _the_one(client: "StoreClient", name: str, topic_filter: str | None) -> "GroupInfo":
    found = [each for each in _groups(client, name) if topic_filter in (None, each.topic_filter)]
    if not found:
        over = f" over {topic_filter}" if topic_filter is not None else ""
        raise PenstockError(f"there is no group {name}{over}; see `penstock group list`")
    if len(found) > 1:
        filters = ", ".join(each.topic_filter for each in found)
        raise UsageError(f"{name}: several groups have this name; give one of {filters} with --filter")
    return found[0]


_OF_FEW = ("tag", "sent", "errors", "away", "error")


def _row(found: "GroupInfo", tag: str | None, paused: bool, work: "ConsumerWork | None") -> dict[str, Any]:
    """`work`: of a flow. What waits for it in Kafka is its lag."""
    return {
        "group": found.group,
        "topic_filter": found.topic_filter,
        "tag": tag,
        "partitions": found.settings.partitions or None,
        "paused": paused,
        "consumers": found.consumers,
        "lag": found.lag if work is None or work.lag is None else work.lag,
        "in_flight": found.in_flight,
        "retries": found.retries,
        "dead_letters": found.dead_letters,
        "acked_offset": found.acked_offset,
        "next_offset": found.next_offset,
        "sent": work.sent if work is not None else None,
        "errors": work.failed + work.outages if work is not None else None,
        "away": work.away if work is not None else None,
        "error": (work.error or None) if work is not None else None,
    }


def _details(found: "GroupInfo") -> dict[str, Any]:
    settings = found.settings
    return {
        "settings": {name: getattr(settings, name) for name in settings.__struct_fields__},
        "consumers": [{name: getattr(each, name) for name in each.__struct_fields__} for each in found.some],
    }
