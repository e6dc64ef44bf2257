"""The settings of the cold tier: all history in one open table."""

from __future__ import annotations

from dataclasses import dataclass, field

from notify.local.tier import TierPolicy
from penstock.table_place import FOLDER_OR_STORAGE, OF_STORAGE
from store.state.changes import WhenBehind

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TierSettings:
    url: str = field(
        default="",
        metadata={
            "doc": "Where the history goes, as one Delta table: a folder, or s3://BUCKET/PATH (gs, az), whose "
            "credentials come from the environment (AWS_ACCESS_KEY_ID, ...). Empty: there is no tier. Needs "
            "`pip install penstock[tier]`.",
            "shape": FOLDER_OR_STORAGE,
            "pattern": OF_STORAGE,
            "secret": "refused",
        },
    )
    commit_s: int = field(
        default=30,
        metadata={
            "doc": "How long a message may wait until the table has it. Each commit makes a file.",
            "at_least": 1,
            "at_most": 86_400,
        },
    )
    commit_bytes: int = field(
        default=256 * MIB,
        metadata={
            "doc": "So many bytes of the log are committed at once, however young they are.",
            "at_least": 1 * MIB,
            "at_most": 4_096 * MIB,
        },
    )
    vacuum_h: int = field(
        default=168,
        metadata={
            "doc": "How many hours small files stay after they were merged into larger ones. A program can read the "
            "version of the table that it has opened for as long.",
            "at_least": 1,
            "at_most": 8_760,
        },
    )
    most_behind_bytes: int = field(
        default=0,
        metadata={
            "doc": "How far behind the tier may be for retention to wait for it; 0, or more than "
            "store.most_behind_bytes: as far as that says.",
            "at_least": 0,
        },
    )
    when_behind: WhenBehind = field(
        default="drop",
        metadata={
            "doc": "What happens once it is further behind: drop, retention drops history that the table does not have "
            "and never gets; refuse, the store takes no messages until the tier has caught up."
        },
    )
    reads: TierPolicy = field(
        default="not_in_log",
        metadata={
            "doc": "Which history is read in the tier: not_in_log, what the log does not have any more; force, all "
            "that the tier has; disabled, none, so that history begins where the log begins."
        },
    )
    cache_bytes: int = field(
        default=256 * MIB,
        metadata={"doc": "Memory for what was read in the tier last.", "at_least": 32 * MIB, "at_most": 65_536 * MIB},
    )
