"""A writer of a table, to be killed from outside: `python -m tests.tier.killed_writer TASK`, a Task as JSON."""

import json
import sys
from dataclasses import asdict, dataclass

from penstock.tier import table as table_module
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TierTable, WrittenLog
from tests.tier.logs import FIRST, START, with_a_gap

PIECES, PIECES_PER_COMMIT = 9, 2


@dataclass(frozen=True)
class Task:
    """What to write where."""

    url: str
    options: dict[str, str]
    seed: int

    def as_text(self) -> str:
        return json.dumps(asdict(self))


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


if __name__ == "__main__":
    table_module.COMMITS_PER_SNAPSHOT = 2  # type: ignore[misc]
    write(Task(**json.loads(sys.argv[1])))
