"""A writer is killed at any moment, again and again; the next one goes on, and each message is in the table once.

Also one that merges files and deletes old ones: what it leaves is what the table needs.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.tier.files import INDEX_FOLDER, index_of, is_merged
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TABLE_SCHEMA, TierTable, WrittenLog
from tests.tier.killed_writer import PIECES, PIECES_PER_COMMIT, Task
from tests.tier.killers import BucketKiller, FolderKiller, Killer, Moment
from tests.tier.logs import FIRST, START, plain_rows, with_a_gap
from tests.tier.places import BUCKET

KILLS = 4
STEPS = {"folder": 200, "s3": 160}
STEPS_OF_MERGES = {"folder": 370, "s3": 1030}
"""Of a writer that nobody kills there are some more."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 25))]


@pytest.fixture(params=STEPS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def killer(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Killer]:
    if kind == "folder":
        yield FolderKiller(tmp_path)
        return
    url = f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}"
    with closing(BucketKiller(request.getfixturevalue("s3_endpoint"), url)) as killer:
        yield killer


class Writer:
    """Writes one log, as often as it is killed."""

    def __init__(self, killer: Killer, seed: int, merges: bool = False) -> None:
        self._killer = killer
        self.log = with_a_gap(seed, PIECES)
        self._rows = list(plain_rows(self.log))
        self._command = [sys.executable, "-m", "tests.tier.killed_writer"]
        self._command.append(Task(killer.place.url, killer.place.options, seed, merges).as_text())

    def is_killed(self, moment: Moment) -> bool:
        """Kill it then. What the table has, is what the log has up to the table's end."""
        is_killed = self._killer.run(self._command, moment)
        end = self.end
        assert self._found() == [row for row in self._rows if row["log_offset"] < end]
        return is_killed

    @property
    def end(self) -> int:
        """Of the table; 0: there is none."""
        try:
            return self._opened().transaction_version(FIRST) or 0
        except TableNotFoundError:
            return 0

    def finish(self) -> None:
        assert not self._killer.run(self._command, None)
        assert self._found() == self._rows
        gap, data = self.log[PIECES // 2]
        lost = self._opened("/_penstock/lost").to_pyarrow_table().select(["log_offset", "until"])
        assert lost.to_pylist() == [{"log_offset": gap, "until": gap + len(data)}]

    def check_files(self) -> None:
        """There are those that the table has, and some of them are merged."""
        place = self._killer.place
        table = TierTable.open(ObjectFolder(place.url, place.options), WrittenLog(FIRST, START, self.end))
        needed = {path for file in table.files() for path in (file.path, index_of(file.path))}
        names = ObjectFolder(place.url, place.options).names()
        assert {name for name in names if name.startswith(("day=", f"{INDEX_FOLDER}/"))} == needed
        assert any(is_merged(path) for path in needed)
        if place.url.startswith("/"):
            assert not list(Path(place.url).glob("*/*#*"))

    def _found(self) -> list[dict[str, Any]]:
        if not self.end:
            return []
        rows = self._opened().to_pyarrow_table().sort_by("log_offset")
        listed: list[dict[str, Any]] = rows.select(TABLE_SCHEMA.names).to_pylist()
        return listed

    def _opened(self, below: str = "") -> DeltaTable:
        return DeltaTable(f"{self._killer.place.url}{below}", storage_options=self._killer.place.options)


def kill(writer: Writer, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    for number in range(KILLS):
        is_killed = writer.is_killed(Moment(chance.randrange(steps)))
        assert is_killed or number, "the first one has more to do than that"
        steps = max(steps // 2, 10)  # the next one has less left to do
    writer.finish()


@pytest.mark.catalogue("N48")
@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_is_there_once_after_kills(killer: Killer, kind: str, seed: int) -> None:
    kill(Writer(killer, seed), seed, STEPS[kind])


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.nightly)], indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_is_there_once_after_kills_of_merges(killer: Killer, kind: str, seed: int) -> None:
    writer = Writer(killer, seed, merges=True)
    kill(writer, seed, STEPS_OF_MERGES[kind])
    writer.check_files()


@pytest.mark.parametrize("is_put", [False, True], ids=["before", "after"])
def test_a_kill_inside_of_the_commit(killer: Killer, is_put: bool) -> None:
    """When deltalake gives the second commit its name: from then on it counts, and not before."""
    writer = Writer(killer, seed=39)
    assert writer.is_killed(Moment(int(is_put), "_delta_log/00000000000000000002.json"))
    assert writer.end == writer.log[(2 if is_put else 1) * PIECES_PER_COMMIT][0]
    writer.finish()
