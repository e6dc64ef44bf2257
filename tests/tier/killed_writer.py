"""A writer of a table, to be killed from outside: `python -m tests.tier.killed_writer TASK`, a Task as JSON."""

import json
import sys
from dataclasses import asdict, dataclass

from penstock.tier import table as table_module
from penstock.tier.compaction import Compactor, MergeRules
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TierTable, WrittenLog
from penstock.tier.vacuum import Vacuum
from tests.tier.logs import FIRST, START, with_a_gap

PIECES, PIECES_PER_COMMIT = 9, 2
KB = 1 << 10
RULES = MergeRules(
    growth=2, full_bytes=60 * KB, most_bytes=200 * KB, sorted_log_bytes=32 * KB, group_bytes=4 * KB,
    memory_bytes=64 * KB, most_files=5,
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What to write where. `merges`: small commits, whose files are merged and vacuumed."""

    url: str
    options: dict[str, str]
    seed: int
    merges: bool = False

    def as_text(self) -> str:
        return json.dumps(asdict(self))


def write(task: Task) -> None:
    """Write from the table's end to the log's."""
    log = with_a_gap(task.seed, PIECES)
    end = log[-1][0] + len(log[-1][1])
    objects = ObjectFolder(task.url, task.options)
    table = TierTable.open(objects, WrittenLog(FIRST, START, end), [(b"line/7/temp", 0)])
    while True:
        if task.merges:
            compact(objects, table)
        left = [piece for piece in log if piece[0] >= table.end]
        if not left:
            return
        writer = table.begin()
        for at, data in left[: 1 if task.merges else PIECES_PER_COMMIT]:
            writer.add(data, at)
        table.commit(writer.finish())


def compact(objects: ObjectFolder, table: TierTable) -> None:
    """Merge all that there is to merge, and delete all that the table does not have any more."""
    for chore in (Compactor(objects, table, RULES), Vacuum(objects, table, 0, list)):
        while chore.step():
            pass


if __name__ == "__main__":
    table_module.COMMITS_PER_SNAPSHOT = 2  # type: ignore[misc]
    write(Task(**json.loads(sys.argv[1])))
