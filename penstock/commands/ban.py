"""`penstock ban`: addresses, networks, users and client identifiers that all doors of a store refuse."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.commands.client import Data, Json, Store, TokenFile, connect
from penstock.commands.options import Config
from penstock.commands.tables import show_table, wide_console
from penstock.errors import UsageError

if TYPE_CHECKING:
    from gateway.auth.bans import BanKind
    from store.wire.operator_messages import BanInfo

ban = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Ban clients, lift bans, list bans.")

Address = Annotated[
    str | None, typer.Option("--address", metavar="ADDRESS", help="An IP address or network: 192.0.2.7, 2001:db8::/64.")
]
User = Annotated[str | None, typer.Option(metavar="NAME", help="A user.")]
ClientId = Annotated[str | None, typer.Option(metavar="ID", help="A client identifier.")]

PER_PAGE = 1_000


@ban.command()
def add(
    address: Address = None,
    user: User = None,
    client_id: ClientId = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="Duration: 30s, 15m, 2h, 7d, 4w; without it the ban lasts until it is lifted."
        ),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, for the logs and for MQTT 5 clients.")] = "",
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
) -> None:
    """Ban an address, a network, a user or a client identifier, and end its connections.

    A ban of an address or a user holds at all doors: MQTT, the store's port (SDK, Spark) and the console.
    """
    from penstock.operating import seconds_of, who
    from store.wire.operator_messages import AddBan, OperatorDone

    kind, value = _of(address, user, client_id)
    for_s = seconds_of(for_) if for_ is not None else 0
    with connect(data, store, token_file, config) as server:
        server.call(AddBan(kind, value, for_s, reason, who()), OperatorDone)
    typer.echo(f"{_words(kind)} {value} is banned {f'for {for_}' if for_ else 'until the ban is lifted'}")


@ban.command()
def lift(
    address: Address = None,
    user: User = None,
    client_id: ClientId = None,
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
) -> None:
    """Lift a ban."""
    from penstock.operating import check_found, who
    from store.wire.operator_messages import LiftBan, OperatorDone

    kind, value = _of(address, user, client_id)
    with connect(data, store, token_file, config) as server:
        done = server.call(LiftBan(kind, value, who()), OperatorDone)
    check_found(done.found, f"ban of {_words(kind)} {value}", "penstock ban list")
    typer.echo(f"{_words(kind)} {value} is not banned any more")


@ban.command("list")
def list_bans(
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show the bans in force, oldest first: end, reason, and the operator that set them."""
    from store.wire.operator_messages import BansListed, ListBans

    rows: list[dict[str, Any]] = []
    after: int | None = 0
    with connect(data, store, token_file, config) as server:
        while after is not None:
            answer = server.call(ListBans(after, PER_PAGE), BansListed)
            rows += [_row(each) for each in answer.bans]
            after = answer.next
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        show_table(wide_console(), "bans", rows)


def _of(address: str | None, user: str | None, client_id: str | None) -> "tuple[BanKind, str]":
    """The kind of ban and its value, as gateways write it. Raises UsageError."""
    from gateway.auth.bans import BAN_KINDS, normal
    from gateway.auth.errors import AuthError

    given = [(kind, each) for kind, each in zip(BAN_KINDS, (address, user, client_id), strict=True) if each is not None]
    if len(given) != 1:
        raise UsageError("give exactly one of --address, --user and --client-id")
    kind, value = given[0]
    try:
        return kind, normal(kind, value)
    except AuthError as error:
        raise UsageError(str(error)) from None


def _words(kind: str) -> str:
    return "client" if kind == "client_id" else kind


def _row(found: "BanInfo") -> dict[str, Any]:
    from penstock.operating import time_of

    return {
        "kind": found.kind,
        "value": found.value,
        "until": time_of(found.until_ms),
        "reason": found.reason,
        "set_by": found.set_by,
        "automatic": found.automatic,
        "since": time_of(found.set_ms),
    }
