"""A writer is killed at any step, again and again; the next one goes on, and each message is in the table once."""

import random
import signal
import subprocess
import sys

import pytest
from deltalake import DeltaTable

from penstock.tier.table import TABLE_SCHEMA
from tests.support.server_process import ROOT
from tests.tier.killed_writer import PIECES, Task
from tests.tier.logs import plain_rows, with_a_gap
from tests.tier.places import TablePlace

KILLS = 4
STEPS = 80
"""Of a writer that nobody kills there are some more."""
BY_DAY = 3
SEEDS = [pytest.param(seed, marks=() if seed < BY_DAY else pytest.mark.nightly) for seed in range(25)]


def run(task: Task) -> int | None:
    """How many steps the writer took; None: it was killed."""
    command = [sys.executable, "-m", "tests.tier.killed_writer", task.as_text()]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if result.returncode == -signal.SIGKILL:
        return None
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_is_there_once_after_kills(place: TablePlace, seed: int) -> None:
    chance = random.Random(seed)
    most = STEPS
    for number in range(KILLS):
        steps = run(Task(place.url, place.options, seed, chance.randrange(most)))
        assert steps is None or number, "the first one has more to do than that"
        most = max(most // 2, 10)  # the next one has less left to do
    steps = run(Task(place.url, place.options, seed, -1))
    assert steps is not None
    log = with_a_gap(seed, PIECES)
    table = DeltaTable(place.url, storage_options=place.options)
    rows = table.to_pyarrow_table().sort_by("log_offset").select(TABLE_SCHEMA.names).to_pylist()
    assert rows == list(plain_rows(log))
    lost = DeltaTable(f"{place.url}/_penstock/lost", storage_options=place.options).to_pyarrow_table().to_pylist()
    gap, data = log[PIECES // 2]
    assert [(each["log_offset"], each["until"]) for each in lost] == [(gap, gap + len(data))]
