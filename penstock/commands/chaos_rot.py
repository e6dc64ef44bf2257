"""`penstock chaos --rot`: damage to the files of a running store, and the fate of the messages in them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.commands.chaos_power import tell
from penstock.commands.progress import shown
from penstock.sdk.errors import ClientError

if TYPE_CHECKING:
    from loadtest.power.rot import RotOptions

READ_TIMEOUT_S = 20


def run_rot(options: RotOptions, json: Path | None) -> None:
    """Exits with 1 if a promise is broken."""
    from loadtest.power.rot import quiet, rot

    quiet()
    with shown("rot") as progress:
        found = asyncio.run(rot(options, read_all, progress))
    tell(found, bool(found.complaints), json)


async def read_all(url: str, topics: tuple[str, ...]) -> list[bytes]:
    """All payloads of some topics. Raises ConnectionError, TimeoutError."""
    from penstock import Client

    try:
        async with asyncio.timeout(READ_TIMEOUT_S), Client(url) as client:
            return [message.payload for topic in topics async for message in client.read(topic)]
    except ClientError as error:
        raise ConnectionError(str(error)) from None
