"""`penstock trace`: who has received a message, as the positions of sessions and groups say."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.commands.client import Data, Json, Store, TokenFile, connect
from penstock.commands.options import Config
from penstock.commands.tables import show_table, wide_console
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.store_client import StoreClient
    from store.wire.operator_messages import GroupReceiver, SessionReceiver, TracedMessage

NO_CLIENT = "not an MQTT client: the record names none"


def trace(
    message_id: Annotated[
        str, typer.Argument(metavar="MESSAGE_ID", help="Id of a message, as a receipt or the console shows it.")
    ],
    data: Data = None,
    store: Store = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show who published a message, and which sessions and groups have received it.

    Positions say it: received, in_flight, under_way (to a connected client), waiting, retry, dead_letter, later
    (subscribed after it), filtered (No Local, or another tag), unknown (QoS 0). Clients without a stored session have
    no position.
    """
    log_offset_of(message_id, None)
    with connect(data, store, token_file, config) as server:
        message, groups, sessions = _asked(server, log_offset_of(message_id, server))
    found = {"message_id": message_id, **_message(message)}
    groups.sort(key=lambda row: (row["group"], row["topic_filter"]))
    sessions.sort(key=lambda row: str(row["client_id"]))
    if as_json:
        typer.echo(json.dumps(found | {"groups": groups, "sessions": sessions}))
        return
    console = wide_console()
    show_table(console, "message", [found | {"published_by": found["published_by"] or NO_CLIENT}])
    show_table(console, "groups", groups)
    show_table(console, "sessions", sessions)


def log_offset_of(message_id: str, server: "StoreClient | None") -> int:
    """The place that an id names, in this server's log. Raises PenstockError."""
    from penstock.sdk.errors import BadMessageId
    from penstock.sdk.message_id import StorePlace, parse_message_id

    try:
        place, log_offset = parse_message_id(message_id)
    except BadMessageId as error:
        raise PenstockError(str(error)) from None
    address = server.address if server is not None else ""
    try:
        own = StorePlace.parse(address) if isinstance(address, str) else StorePlace.of(*address)
    except (ValueError, OverflowError):
        return log_offset  # at a Unix socket a store has no address, and takes an id of any
    if place != own:
        raise PenstockError(f"{message_id} is of the store at {place}, and this is the one at {own}; ask that store")
    return log_offset


def _asked(
    server: "StoreClient", log_offset: int
) -> "tuple[TracedMessage, list[dict[str, Any]], list[dict[str, Any]]]":
    """The message, and rows of groups and sessions."""
    from store.wire.handshake import RECEIVERS_VERSION
    from store.wire.operator_messages import MessageReceivers, ReceiversFound

    if server.version < RECEIVERS_VERSION:
        raise PenstockError("this store cannot say who has received a message; upgrade it")
    message: TracedMessage | None = None
    groups: list[dict[str, Any]] = []
    sessions: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        answer = server.call(MessageReceivers(log_offset, after), ReceiversFound)
        message = message or answer.message
        groups += [_group(each) for each in answer.groups]
        sessions += [_session(each) for each in answer.sessions]
        after = answer.next
    if message is None:
        raise PenstockError("the store did not say which message this is; upgrade it")
    return message, groups, sessions


def _message(message: "TracedMessage") -> dict[str, Any]:
    return {
        "topic": message.topic,
        "stored_at": _time(message.stored_ms),
        "queue_offset": message.queue_offset,
        "qos": message.qos,
        "published_by": message.client_id or None,
        "user": message.user or None,
    }


def _group(each: "GroupReceiver") -> dict[str, Any]:
    return {
        "group": each.group,
        "topic_filter": each.topic_filter,
        "state": each.state,
        "paused": each.paused,
        "deliveries": each.deliveries,
        "due": _time(each.due_ms) if each.due_ms else None,
        "consumer": each.consumer or None,
        "letter_log_offset": each.letter,
    }


def _session(each: "SessionReceiver") -> dict[str, Any]:
    return {
        "client_id": each.client_id,
        "topic_filter": each.topic_filter,
        "qos": each.qos,
        "state": each.state,
        "online": each.online,
    }


def _time(unix_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")
