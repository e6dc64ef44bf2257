"""A writer of a table that kills itself at its k-th step: `python -m tests.tier.killed_writer TASK`, a Task as JSON.

A step is the moment before or after each call that changes something, or looks at it. It prints how many there were.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import obstore
from deltalake import DeltaTable
from deltalake.table import TableAlterer

from penstock.tier import table as table_module
from penstock.tier.objects import ObjectFolder, ObjectWriter
from penstock.tier.table import TierTable, WrittenLog
from tests.tier.logs import FIRST, START, with_a_gap

PIECES, PIECES_PER_COMMIT = 9, 2
STEPS: tuple[tuple[Any, str], ...] = (
    (obstore, "put"),
    (obstore, "delete"),
    (ObjectWriter, "close"),
    (ObjectFolder, "settle"),
    (DeltaTable, "create"),
    (DeltaTable, "create_write_transaction"),
    (DeltaTable, "update_incremental"),
    (TableAlterer, "set_table_properties"),
    (table_module, "write_deltalake"),
)


@dataclass(frozen=True)
class Task:
    """What to write where; `dies_at`: the step, or -1."""

    url: str
    options: dict[str, str]
    seed: int
    dies_at: int

    def as_text(self) -> str:
        return json.dumps(asdict(self))


class Steps:
    """Counts steps, and ends this process without a word at the chosen one."""

    def __init__(self, dies_at: int) -> None:
        self.taken = 0
        self._dies_at = dies_at

    def step(self) -> None:
        if self.taken == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.taken += 1

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = call(*args, **kwargs)
            self.step()
            return result

        return called


def write(task: Task) -> None:
    """Write from the table's end to the log's."""
    log = with_a_gap(task.seed, PIECES)
    end = log[-1][0] + len(log[-1][1])
    table = TierTable.open(ObjectFolder(task.url, task.options), WrittenLog(FIRST, START, end), [(b"line/7/temp", 0)])
    while table.end < end:
        left = [piece for piece in log if piece[0] >= table.end]
        writer = table.begin()
        for at, data in left[:PIECES_PER_COMMIT]:
            writer.add(data, at)
        table.commit(writer.finish())


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    steps = Steps(task.dies_at)
    for owner, name in STEPS:
        setattr(owner, name, steps.around(getattr(owner, name)))
    table_module.COMMITS_PER_SNAPSHOT = 2  # type: ignore[misc]
    write(task)
    print(steps.taken)


if __name__ == "__main__":
    main()
