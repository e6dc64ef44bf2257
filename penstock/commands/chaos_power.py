"""`penstock chaos --power`: file states that a power cut may leave, and the recovery of the store from each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.commands.progress import shown
from penstock.sdk.errors import ClientError

if TYPE_CHECKING:
    from loadtest.power.rot import Rot
    from loadtest.power.run import Power, PowerOptions

CONSUMERS = 2
INVISIBLE_S = 20.0


def run_power(options: PowerOptions, json: Path | None) -> None:
    """Exits with 1 if an image breaks a promise."""
    from loadtest.power.rot import quiet
    from loadtest.power.run import power

    quiet()
    with shown("power") as progress:
        found = power(options, consumers, typer.echo, progress)
    tell(found, bool(found.faults), json)


def tell(found: Power | Rot, is_broken: bool, json: Path | None) -> None:
    """Print the results, and write them to a file. Exits with 1 if a promise is broken."""
    import msgspec

    from loadtest.chaos.results import write

    if json is not None:
        write(json, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    typer.echo(found.verdict())
    if is_broken:
        raise typer.Exit(1)


@asynccontextmanager
async def consumers(url: str, settled: Callable[[int], None]) -> AsyncIterator[None]:
    """Run two consumers of a group that acknowledge their messages."""
    from loadtest.power.traffic import GROUP, GROUP_FILTER
    from penstock import Client
    from penstock.sdk.delivery import Delivery

    async def settle(message: Delivery) -> None:
        with suppress(ClientError):  # the store is killed
            if await message.ack():
                settled(message.log_offset)

    async def work(client: Client) -> None:
        settling: set[asyncio.Task[None]] = set()
        async for message in client.subscribe(GROUP_FILTER, group=GROUP, invisible=INVISIBLE_S, max_deliveries=0):
            task = asyncio.create_task(settle(message))
            settling.add(task)
            task.add_done_callback(settling.discard)

    async with Client(url) as client:
        workers = [asyncio.create_task(work(client)) for _ in range(CONSUMERS)]
        try:
            yield
        finally:
            for worker in workers:
                worker.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*workers)
