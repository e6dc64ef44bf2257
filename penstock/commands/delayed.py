"""`penstock delayed`: list and cancel the delayed messages of a running store."""

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.commands.group import Json, Store, connect
from penstock.commands.options import Config
from penstock.commands.tables import show_table, wide_console
from penstock.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from penstock.store_client import StoreClient

delayed = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and cancel delayed messages.")

PER_PAGE = 1_000
_ID = re.compile(r"(\d{1,19})-(\d{1,19})")


@delayed.command("list")
def list_delayed(
    topic_filter: Annotated[
        str, typer.Option("--filter", metavar="TOPIC_FILTER", help="Only messages to these topics.")
    ] = "#",
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key.")] = None,
    count: Annotated[int, typer.Option("-n", metavar="COUNT", min=1, help="At most this many.")] = 100,
    store: Store = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show pending messages and their due times, the next one first."""
    with connect(store, config) as client:
        rows = _pending(client, topic_filter, key, count)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        show_table(wide_console(), "delayed messages", rows)


@delayed.command()
def cancel(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Identifiers from `penstock delayed list`.")],
    store: Store = None,
    config: Config = None,
) -> None:
    """Cancel messages. Fails if one of them is already published or cancelled."""
    from store.wire.messages import CancelDelayed, DelayedCancelled

    parsed = [(text, _parsed(text)) for text in ids]
    late = []
    with connect(store, config) as client:
        for text, (log_offset, due_ms) in parsed:
            if client.call(CancelDelayed(log_offset, due_ms), DelayedCancelled).was_pending:
                typer.echo(f"{text} is cancelled")
            else:
                late.append(text)
    if late:
        raise PenstockError(f"{', '.join(late)}: not pending: already published or cancelled")


def _pending(client: "StoreClient", topic_filter: str, key: str | None, count: int) -> list[dict[str, Any]]:
    from penstock.sdk.filters import matches_any
    from store.wire.messages import DelayedFound, ListDelayed

    found: list[dict[str, Any]] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None and len(found) < count:
        answer = client.call(ListDelayed(after, PER_PAGE), DelayedFound)
        found += [
            _row(log_offset, due_ms, topic, its_key.decode())
            for log_offset, due_ms, topic, its_key in answer.messages
            if key in (None, its_key.decode()) and matches_any((topic_filter,), topic)
        ]
        after = answer.next
    return found[:count]


def _row(log_offset: int, due_ms: int, topic: str, key: str) -> dict[str, Any]:
    due = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"id": f"{log_offset}-{due_ms}", "due": due, "topic": topic, "key": key or None}


def _parsed(text: str) -> tuple[int, int]:
    found = _ID.fullmatch(text)
    if found is None:
        raise UsageError(f"{text}: not the id of a delayed message; copy one from `penstock delayed list`")
    return int(found[1]), int(found[2])
