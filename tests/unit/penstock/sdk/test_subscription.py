"""The life of a subscription: its stages, and the picture of them."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.sdk.address import Address
from penstock.sdk.credentials import ClientCredentials
from penstock.sdk.link import ClientLink
from penstock.sdk.subscription import TRANSITIONS, Stage, Subscription, WantedMessages

PAGE = (Path(__file__).parents[4] / "docs" / "sdk.md").read_text()


class Started(NamedTuple):
    link: ClientLink
    subscription: Subscription


def started() -> Started:
    """A subscription of a client that has no connection."""
    link = ClientLink(Address.parse("penstock://127.0.0.1:1"), "c", ClientCredentials(), 0.05)
    return Started(link, Subscription(link, WantedMessages("t", "g", "c", None, "", 10)))


async def taken(subscription: Subscription) -> list[object]:
    return [delivery async for delivery in subscription]


def test_the_picture_is_the_table() -> None:
    diagram = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    assert diagram
    drawn = re.findall(r"(\w+|\[\*\]) --> (\w+|\[\*\])(?:: (.*))?", diagram[1])
    table = [("[*]", Stage.NEW.name, "")]
    table += [(one.name, other.name, why) for one, others in TRANSITIONS.items() for other, why in others.items()]
    table += [(one.name, "[*]", "") for one in Stage if not TRANSITIONS[one]]
    assert drawn == table


@pytest.mark.parametrize("end", [Subscription.stop, Subscription.close])
def test_subscription_that_ended_before_it_began_has_no_messages(end: Callable[[Subscription], None]) -> None:
    async def run() -> None:
        link, subscription = started()
        end(subscription)
        await asyncio.sleep(0)
        assert await taken(subscription) == []
        await subscription.aclose()
        assert not link.readings

    asyncio.run(run())


def test_a_closed_one_can_be_entered_and_has_no_messages() -> None:
    """It asked nothing of the store, so there is nothing to wait for."""

    async def run() -> None:
        link, subscription = started()
        subscription.close()
        async with subscription as messages:
            assert await taken(messages) == []
        assert not link.readings

    asyncio.run(run())


def test_a_failed_one_raises_and_stays_closed() -> None:
    async def run() -> None:
        link, subscription = started()
        loop = asyncio.ensure_future(taken(subscription))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert subscription in link.readings
        subscription.fail(OSError("no more"))
        with pytest.raises(Exception, match="no more"):
            await loop
        subscription.close()
        subscription._stop()
        assert not link.readings

    asyncio.run(run())
