"""Programs that consume a group by HTTP, while the console, the store, or one of them is killed."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_console_api import Site
from tests.support.http_group import HttpGroup, payloads
from tests.support.server_process import ROOT, free_port
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

MESSAGES = 1_500
WORKERS = 2
GROUP = "billing", "line/#"
TIMEOUT_S = 60


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    store = StoreProcess(tmp_path)
    site = Site(tmp_path, store, console__listen=f"127.0.0.1:{free_port()}")
    yield site
    site.console.close()
    store.close()


class Workers:
    """Processes that consume, and what they said."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "tests.support.http_worker", url, *GROUP]
        self._files: list[Path] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        file = self._folder / f"worker-{len(self._files)}"
        self._files.append(file)
        with file.open("wb") as said:
            self.running.append(subprocess.Popen(self._command, cwd=ROOT, stdout=said))

    def kill_first(self) -> None:
        victim = self.running.pop(0)
        victim.kill()
        victim.wait()

    def replace_first(self) -> None:
        self.start()
        self.kill_first()

    def said(self, what: str) -> dict[str, list[float]]:
        """The times of each payload."""
        found: dict[str, list[float]] = defaultdict(list)
        for file in self._files:
            for line in file.read_text().split("\n")[:-1]:  # the last one may be half a line
                if line.startswith(what):
                    _, payload, when = line.split()
                    found[payload].append(float(when))
        return found


def restarted(part: Any) -> None:
    part.kill()
    part.start()


def lag(site: Site) -> int:
    found = site.client.get("/groups/billing", filter_="line/#").json
    return int(found["lag"])


def consume_through_kills(site: Site, folder: Path, victim: str, kills: int, messages: int) -> None:
    group = HttpGroup(site.client, *GROUP)
    group.pop()
    sent = [str(number) for number in range(messages)]
    for at in range(0, messages, 500):
        answer = site.client.post("/messages", [{"topic": "line/1", "payload": each} for each in sent[at : at + 500]])
        assert answer.status == 201
    workers = Workers(folder, site.console.url)
    kill: dict[str, Callable[[], None]] = {
        "console": lambda: restarted(site.console),
        "store": lambda: restarted(site.store),
        "program": workers.replace_first,
    }
    try:
        for _ in range(WORKERS):
            workers.start()
        for number in range(kills):
            part = messages * (number + 1) // (kills + 1)
            wait_until(lambda part=part: len(workers.said("acked")) >= part, TIMEOUT_S)  # type: ignore[misc]
            kill[victim]()
        wait_until(lambda: lag(site) == 0, TIMEOUT_S)
    finally:
        while workers.running:
            workers.kill_first()
    popped, acked = workers.said("popped"), workers.said("acked")
    assert popped.keys() == set(sent)  # nothing is lost
    again = [each for each, times in acked.items() if max(popped[each]) > min(times)]
    assert not again, "acknowledged messages came again"
    found = site.client.get("/groups/billing", filter_="line/#").json
    assert (found["dead_letters"], found["in_flight"], found["acked_offset"]) == (0, 0, messages)


@pytest.mark.catalogue("R78")
@pytest.mark.parametrize("victim", ["console", "store", "program"])
def test_nothing_is_lost_and_nothing_acknowledged_comes_again(site: Site, tmp_path: Path, victim: str) -> None:
    consume_through_kills(site, tmp_path, victim, 2, MESSAGES)


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["console", "store", "program"])
def test_nothing_is_lost_through_many_kills(site: Site, tmp_path: Path, victim: str) -> None:
    consume_through_kills(site, tmp_path, victim, 12, 10 * MESSAGES)


def test_a_handle_outlives_the_console_that_made_it(site: Site) -> None:
    """What it handed out is nobody else's meanwhile, and is settled by the next one."""
    group = HttpGroup(site.client, *GROUP)
    group.pop()
    for each in ("one", "two", "three", "four"):
        assert site.client.post("/messages", {"topic": "line/1", "payload": each}).status == 201
    popped = group.pop(invisible_s=600)
    assert payloads(popped) == ["one", "two", "three", "four"]
    restarted(site.console)
    group = HttpGroup(site.client, *GROUP)
    wait_until(lambda: site.client.get("/groups/billing").json["consumers"] == 0, TIMEOUT_S)
    assert site.client.get("/groups/billing").json["in_flight"] == 4
    assert group.pop() == []
    group.ack(popped[0])
    assert group.settle("extend", popped[1:2], invisible_s=600).status == 200
    assert group.settle("reject", popped[2:3]).status == 200
    assert group.settle("retry", popped[3:], after_s=0).status == 200
    (again,) = group.pop(wait_s=10)
    assert (again["attempt"], payloads([again])) == (2, ["four"])
    group.ack(popped[1], again)
    assert lag(site) == 0


def test_a_handle_outlives_the_store_if_its_log_has_the_lease(site: Site) -> None:
    group = HttpGroup(site.client, *GROUP)
    group.pop()
    assert site.client.post("/messages", {"topic": "line/1", "payload": "one"}).status == 201
    (popped,) = group.pop(invisible_s=600)
    assert group.settle("extend", [popped], invisible_s=600).status == 200  # the answer says that the log has it
    restarted(site.store)
    wait_until(lambda: group.ask("pop").status == 200, TIMEOUT_S)  # the console has found it
    assert group.pop(wait_s=1) == []
    assert site.client.get("/groups/billing").json["in_flight"] == 1
    group.ack(popped)
    assert lag(site) == 0
