"""All dead letters of a group are published again over HTTP under kills of the store: each comes once, none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock.sync import Client
from tests.conftest import KILLED_WITH_EITHER_FLUSH, QUICK, ServerFactory
from tests.support.console_process import ConsoleProcess
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

LETTERS = 2_000
KILLS = 3
PER_KILL = 300
"""Letters that are settled between two kills."""
WAIT_S = 60


class LetterSite:
    """A server and a console that outlives it."""

    def __init__(self, server: PenstockServer, folder: Path) -> None:
        self.server = server
        self.url = f"unix://{server.data.absolute()}/console.sock"
        self.console = ConsoleProcess(folder, self.url)

    def die(self, count: int) -> None:
        with Client(self.url) as client, client.subscribe("line/#", group="billing", start="now") as members:
            client.publish_many([(f"line/{number % 7}", b"%d" % number) for number in range(count)])
            for message in islice(members, count):
                message.reject("no use", wait=False)
            wait_until(lambda: self.count() == count, WAIT_S)

    def count(self) -> int:
        """Dead letters that there were."""
        (group,) = self.console.client().get("/groups", name="billing").json["groups"]
        return int(group["dead_letters"])

    def first(self) -> int:
        """queue_offset of the oldest one that is open; -1: none, or the store is away."""
        answer = self.console.client().get("/groups/billing/dead-letters", limit=1)
        letters = answer.json["dead_letters"] if answer.status == 200 else []
        return int(letters[0]["queue_offset"]) if letters else -1

    def has_reached(self, queue_offset: int, publishing: Thread) -> bool:
        """Whether all before it is settled, or nothing is settled any more."""
        return self.first() >= queue_offset or not publishing.is_alive()

    def publish_all(self) -> list[dict[str, Any]]:
        """The answers of all steps; one that fails is taken again."""
        answers: list[dict[str, Any]] = []
        after: str | None = None
        while not answers or after is not None:
            body = {"all": True} if after is None else {"all": True, "after": after}
            answer = self.console.client().post("/groups/billing/dead-letters/publish", body)
            if answer.status == 200:
                answers.append(answer.json)
                after = answer.json["next"]
            else:
                assert answer.status in (503, 504), answer
        return answers

    def published(self) -> Counter[bytes]:
        with Client(self.url, timeout_s=20) as client:
            return Counter(message.payload for message in client.read("line/#"))


@pytest.fixture
def site(penstock_server: ServerFactory, tmp_path: Path, flush: str) -> Iterator[LetterSite]:
    site = LetterSite(penstock_server(flush=flush, settings=QUICK), tmp_path)
    yield site
    site.console.close()


@KILLED_WITH_EITHER_FLUSH
def test_each_letter_is_published_once_under_kills(site: LetterSite) -> None:
    site.die(LETTERS)
    answers: list[dict[str, Any]] = []
    publishing = Thread(target=lambda: answers.extend(site.publish_all()))
    publishing.start()
    for kill in range(1, KILLS + 1):
        wait_until(partial(site.has_reached, kill * PER_KILL, publishing), WAIT_S)
        assert publishing.is_alive(), "it was done before the store was killed"
        site.server.kill()
        site.server.restart()
    publishing.join(WAIT_S)
    assert not publishing.is_alive()
    assert site.first() == -1
    assert site.published() == {b"%d" % number: 2 for number in range(LETTERS)}
    assert all(answer["left"] == [] for answer in answers)
    assert sum(answer["settled"] + answer["gone"] for answer in answers) <= LETTERS + KILLS * 50
