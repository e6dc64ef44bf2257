"""A program that consumes a group by HTTP and is killed: python -m tests.support.http_worker URL GROUP FILTER

A line for each message, on standard output: `popped` or `acked`, its payload, and the seconds of a clock that all
processes share: before it was asked for, and after the answer.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from http.client import HTTPException
from time import monotonic, sleep
from typing import Any

from tests.support.console_process import Answered, WebClient
from tests.support.http_group import HttpGroup

AGAIN_S = 0.05
INVISIBLE_S = 2


def work(group: HttpGroup) -> None:
    """Until it is killed."""
    while True:
        asked_s = monotonic()
        answer = _asked(group, "pop", most=5, wait_s=1, invisible_s=INVISIBLE_S)
        if answer is None or answer.status != 200:
            sleep(AGAIN_S)
            continue
        popped = answer.json["messages"]
        for each in popped:
            print("popped", each["message"]["payload"], asked_s, flush=True)
        if popped:
            _ack(group, popped)


def _ack(group: HttpGroup, popped: list[Any]) -> None:
    while True:
        answer = _asked(group, "ack", handles=[each["handle"] for each in popped])
        if answer is not None and answer.status in (200, 207, 410):
            stale = answer.json["stale"]
            answered_s = monotonic()
            for each in popped:
                if each["handle"] not in stale:
                    print("acked", each["message"]["payload"], answered_s, flush=True)
            return
        sleep(AGAIN_S)


def _asked(group: HttpGroup, what: str, **body: Any) -> Answered | None:
    with suppress(OSError, HTTPException):
        return group.ask(what, **body)
    return None


if __name__ == "__main__":
    work(HttpGroup(WebClient(sys.argv[1]), *sys.argv[2:]))
