"""`penstock client`: list the clients and sessions of a running server, end connections and sessions."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.commands.options import Config, settings_in_force
from penstock.commands.tables import show_table, wide_console

if TYPE_CHECKING:
    from penstock.store_client import StoreClient
    from store.wire.operator_messages import ClientInfo

client = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List clients and sessions, and end them.")

Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Data folder of the server on this machine; penstock-data if unset.")
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Address of the store, in place of --data: tcp://HOST:PORT, tls://HOST:PORT, unix:///PATH."
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --store: file with the operator token (wire.operator_token of the store)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="The client identifier.")]


def connect(data: Path | None, store: str | None, token_file: Path | None, config: Path | None) -> "StoreClient":
    """To the server that these options name."""
    from penstock.operating import connect as connect_operator

    return connect_operator(settings_in_force({}, config, print_config=False), data, store, token_file)


@client.command("list")
def list_clients(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only client identifiers with this prefix.", show_default=False)
    ] = "",
    online: Annotated[bool, typer.Option("--online", help="Only connected clients.")] = False,
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show the connected clients, and the sessions whose clients are away."""
    from store.wire.operator_messages import ClientsListed, ListClients

    rows: list[dict[str, Any]] = []
    after: int | None = 0
    with connect(data, store, token_file, config) as server:
        while after is not None:
            answer = server.call(ListClients(prefix, online, after), ClientsListed)
            rows += [_row(each) for each in answer.clients]
            after = answer.next
    rows.sort(key=lambda row: str(row["client_id"]))
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        show_table(wide_console(), "clients", rows)


@client.command()
def show(
    client_id: ClientId,
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show the details of one client and its session."""
    from penstock.operating import check_found
    from store.wire.operator_messages import ClientShown, ShowClient

    with connect(data, store, token_file, config) as server:
        found = server.call(ShowClient(client_id), ClientShown)
    check_found(found.client is not None, f"client or session {client_id}", "penstock client list")
    assert found.client is not None
    row = _row(found.client)
    subscriptions = [{"topic_filter": topic_filter, "qos": qos} for topic_filter, qos in found.subscriptions]
    details = {"has_will": found.has_will, "acked_log_offset": found.acked}
    if as_json:
        typer.echo(json.dumps(row | details | {"subscribed": subscriptions}))
        return
    console = wide_console()
    show_table(console, client_id, [row | details])
    show_table(console, "subscriptions in the log", subscriptions)


@client.command()
def disconnect(
    client_id: ClientId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, for the logs and for an MQTT 5 client.")] = "",
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
) -> None:
    """End a client's connection (0x98). The client may connect again; `penstock ban add` prevents that."""
    from penstock.operating import check_found, who
    from store.wire.operator_messages import DisconnectClient, OperatorDone

    with connect(data, store, token_file, config) as server:
        done = server.call(DisconnectClient(client_id, reason, who()), OperatorDone)
    check_found(done.found, f"connection of client {client_id}", "penstock client list --online")
    typer.echo(f"client {client_id} is disconnected")


@client.command()
def end(
    client_id: ClientId,
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
) -> None:
    """End a session, with its subscriptions, its waiting messages and its connection."""
    from penstock.operating import check_found, who
    from store.wire.operator_messages import EndSession, OperatorDone

    with connect(data, store, token_file, config) as server:
        done = server.call(EndSession(client_id, who()), OperatorDone)
    check_found(done.found, f"session of client {client_id}", "penstock client list")
    typer.echo(f"the session of client {client_id} is ended")


@client.command()
def assign(
    client_id: ClientId,
    user: Annotated[str, typer.Argument(metavar="USER", help="The new owner; '' for anonymous clients.")],
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
) -> None:
    """Assign a session to a user. Only this user's clients can resume it. A connection of another user ends."""
    from penstock.operating import check_found, who
    from store.wire.operator_messages import AssignSession, OperatorDone

    with connect(data, store, token_file, config) as server:
        done = server.call(AssignSession(client_id, user, who()), OperatorDone)
    check_found(done.found, f"session of client {client_id}", "penstock client list")
    typer.echo(f"the session of client {client_id} belongs to {user or 'anonymous clients'}")


def _row(found: "ClientInfo") -> dict[str, Any]:
    from penstock.operating import time_of

    return {
        "client_id": found.client_id,
        "user": found.user,
        "state": "online" if found.online else "offline",
        "address": found.address or None,
        "since": time_of(found.since_ms),
        "gateway": found.gateway or None,
        "subscriptions": found.subscriptions,
        "session_expiry_s": found.session_expiry_interval,
    }
