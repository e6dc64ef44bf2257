"""Verdicts on thousands of messages are several requests, which are one to the program."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.sdk.enrolment import Enrolment
from penstock.sdk.errors import ConnectionLost
from penstock.sdk.hands import ACK
from penstock.sdk.link import ClientLink
from penstock.sdk.verdicts import Verdicts
from store.wire.base import ITEMS_PER_FRAME
from store.wire.client.requests import Answered
from store.wire.group_messages import Ack, Receipt, Settled

COUNT = 2 * ITEMS_PER_FRAME + 1
PLACES = [(1, 2 * number, 1) for number in range(COUNT)]


class Requests:
    """Those of a link that has a connection."""

    welcome = True
    rules = SimpleNamespace(timeout_s=60.0)

    def __init__(self) -> None:
        self.asked: list[tuple[Ack, Answered]] = []

    def ask_once(self, message: Ack, answered: Answered) -> None:
        self.asked.append((message, answered))


@pytest.mark.parametrize("lost", [[], [1], [0, 2], [0, 1, 2]])
def test_thousands_of_receipts_are_several_requests(lost: list[int]) -> None:
    async def run() -> None:
        requests = Requests()
        enrolment = Enrolment()
        enrolment.ref = 7
        verdicts = Verdicts(cast(ClientLink, SimpleNamespace(requests=requests)), enrolment, lambda: None)
        answer = verdicts.add(ACK, PLACES)
        await asyncio.sleep(0)
        sent, requests.asked = requests.asked, []
        assert [len(message.receipts) for message, _ in sent] == [ITEMS_PER_FRAME, ITEMS_PER_FRAME, 1]
        stale = Receipt(1, 0, 1)
        for number, (_, answered) in enumerate(sent):
            frame = cast(Any, None)
            answered(ConnectionLost("gone") if number in lost else Settled([stale] if number == 0 else []), frame)
        again = [receipt for number in lost for receipt in sent[number][0].receipts]
        if lost:
            enrolment.ref = 8
            verdicts.send()
            assert [receipt for message, _ in requests.asked for receipt in message.receipts] == again
            for _, answered in requests.asked:
                answered(Settled([]), frame)
        assert await answer is (0 in lost)
        assert not verdicts

    asyncio.run(run())
