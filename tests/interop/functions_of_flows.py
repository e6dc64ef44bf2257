"""Functions that flows of tests lead to; each payload says what is to become of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from penstock.flows.functions import FunctionMessage, FunctionOutput, RejectMessage


def act(message: FunctionMessage) -> object:
    """What both functions do."""
    match message.payload.decode().split():
        case ["raise"]:
            raise ValueError("not this one")
        case ["reject"]:
            raise RejectMessage("of no use")
        case ["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["leave"]:
            os._exit(3)
        case ["number"]:
            return 7
        case ["topic"]:
            return "bad/#", b""
        case ["back"]:
            return message.topic, b""
        case ["many"]:
            return [FunctionOutput(f"out/many/{i}", f"{i}", headers={"n": str(i)}) for i in range(3)]
    print("printed", message.topic, flush=True)
    sys.stdout.write("and this\n")
    said = f"{message.headers.get('a')} {message.key} {message.content_type} {message.time.year >= 2026}"
    return FunctionOutput(f"out/{message.payload.decode()}", said, key="k", content_type="text/plain")


def plain(message: FunctionMessage) -> object:
    if message.payload == b"hang":
        time.sleep(600)
    return act(message)


async def later(message: FunctionMessage) -> object:
    if message.payload == b"hang":
        await asyncio.sleep(600)
    await asyncio.sleep(0.001)
    return act(message)


def copied(message: FunctionMessage) -> tuple[str, bytes]:
    """For kills: what comes to plant/… goes to out/…."""
    return message.topic.replace("plant", "out", 1), message.payload


def no_argument() -> None: ...


NO_FUNCTION = 7
