"""The settings of the store. The command fills them in; the store reads no file or environment.

Each field's metadata holds its line of documentation (`doc`) and, where there is one, what the
command checks: the range (`at_least`, `at_most`) or the form (`pattern`; `shape` is what people are told).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MOST_RESTORED_FROM = 16  # of the logs that a log was restored from, one after another


@dataclass(frozen=True, slots=True)
class StoreSettings:
    data: Path = field(
        default=Path("penstock-data"),
        metadata={"doc": "Folder that holds the log and its index; made if it is missing."},
    )
    flush: Literal["sync", "async", "buffered"] = field(
        default="sync",
        metadata={
            "doc": "When a message is acknowledged: sync, once it is on disk (survives power "
            "loss); async, once the kernel has it (survives a killed process); "
            "buffered, at once (a killed process loses the last moments)."
        },
    )
    segment_bytes: int = field(
        default=256 * MIB,
        metadata={"doc": "Largest size of one log file.", "at_least": 64 * KIB, "at_most": 2 * GIB},
    )
    flush_interval_ms: int = field(
        default=500,
        metadata={"doc": "With flush async: how often dirty bytes are flushed.", "at_least": 1},
    )
    flush_dirty_bytes: int = field(
        default=16 * KIB,
        metadata={
            "doc": "With flush async: fewer dirty bytes than this wait for the deadline.",
            "at_least": 1,
        },
    )
    flush_deadline_ms: int = field(
        default=10_000,
        metadata={
            "doc": "With flush async: dirty bytes are flushed after this, however few they are.",
            "at_least": 1,
        },
    )
    flush_timeout_ms: int = field(
        default=5_000,
        metadata={
            "doc": "With flush sync: a publish whose flush takes longer is answered with an error.",
            "at_least": 1,
        },
    )
    buffered_commit_ms: int = field(
        default=200,
        metadata={
            "doc": "With flush buffered: how often the buffer is written to the log.",
            "at_least": 1,
        },
    )
    retention_bytes: int | None = field(
        default=None,
        metadata={
            "doc": "The oldest log files go once the log is larger than this; unset keeps them.",
            "at_least": 1,
        },
    )
    retention_age_s: int | None = field(
        default=None,
        metadata={
            "doc": "Log files whose newest message is older than this go; unset keeps them.",
            "at_least": 1,
        },
    )
    retention_check_s: int = field(
        default=60,
        metadata={
            "doc": "How often the log is trimmed to its retention, and unheld queues are looked for.",
            "at_least": 1,
        },
    )
    most_behind_bytes: int = field(
        default=16 * GIB,
        metadata={
            "doc": "How far behind a reader of the log may be for which retention waits, as long as the disk has room. "
            "If it is further behind, it loses what retention drops, or messages are refused: as the reader says.",
            "at_least": 0,
        },
    )
    max_delay_s: int = field(
        default=31_536_000,
        metadata={
            "doc": "Longest delay of a delayed message; 0 takes none.",
            "at_least": 0,
            "at_most": 3_153_600_000,
        },
    )
    max_plain_bytes: int = field(
        default=4 * MIB,
        metadata={
            "doc": "Largest payload that a compressed message may have once it is decompressed.",
            "at_least": 4 * KIB,
            "at_most": 128 * MIB,
        },
    )
    reserve_bytes: int = field(
        default=64 * MIB,
        metadata={
            "doc": "Room on the disk that messages do not take, so that the index can always be "
            "written; never more than 5 % of the file system.",
            "at_least": 0,
        },
    )
    verify_at_start_bytes: int = field(
        default=4 * GIB,
        metadata={
            "doc": "How many of the log's newest bytes have their checksums verified at start.",
            "at_least": 0,
        },
    )
    scrub_bytes_per_s: int = field(
        default=4 * MIB,
        metadata={
            "doc": "How fast the scrubber reads the log's sealed files to find damage before it is needed, in bytes a "
            "second; 0 switches it off.",
            "at_least": 0,
        },
    )
    scrub_interval_s: int = field(
        default=86_400,
        metadata={
            "doc": "How long the scrubber rests between two passes over the log.",
            "at_least": 1,
            "at_most": 31_536_000,
        },
    )
    on_failed_sync: Literal["exit", "rewrite", "refuse"] = field(
        default="exit",
        metadata={
            "doc": "What happens once the disk failed to confirm a write, after which nothing can be acknowledged: "
            "exit ends the process with code 74, for a supervisor to start it again; rewrite goes on: it refuses what "
            "is new until it has written anew, to another file, what is not confirmed, and exits like that if this "
            "fails as well, or is more than the newest 4 MiB; refuse goes on serving what is stored and refuses what "
            "is new."
        },
    )
    on_damage: Literal["quarantine", "refuse"] = field(
        default="quarantine",
        metadata={
            "doc": "What a start does about damage in the log: quarantine copies the damaged bytes to the folder "
            "`quarantine` and serves all that is intact; refuse does not start."
        },
    )
    index_flush_ms: int = field(
        default=100,
        metadata={
            "doc": "How long new queue entries stay in memory before the index gets them.",
            "at_least": 1,
        },
    )
    index_flush_entries: int = field(
        default=200_000,
        metadata={
            "doc": "From this many new queue entries on the index gets them at once; the more there are, "
            "the more at a time.",
            "at_least": 1,
        },
    )
    index_write_buffer_bytes: int = field(
        default=32 * MIB,
        metadata={"doc": "Size of the index's (RocksDB's) write buffer.", "at_least": 64 * KIB},
    )
    index_flush_log_bytes: int = field(
        default=80 * MIB,
        metadata={
            "doc": "The index is made durable whenever it has taken in so much more of the log: a start after a kill "
            "reads about this much again, however large messages are.",
            "at_least": 1 * MIB,
        },
    )
    clock_jump_s: int = field(
        default=60,
        metadata={
            "doc": "A clock that is set by so much or more while the store runs is told, and ends no session and drops "
            "no segment before its time.",
            "at_least": 1,
        },
    )
    queue_grace_s: int = field(
        default=3_600,
        metadata={
            "doc": "A filter's queue that no session holds is dropped after this.",
            "at_least": 0,
        },
    )
    group_flush_ms: int = field(
        default=100,
        metadata={
            "doc": "How often a consumer group's progress is written to the log; a kill forgets what was handed "
            "out since.",
            "at_least": 1,
            "at_most": 10_000,
        },
    )
    cached_topics: int = field(
        default=100_000,
        metadata={
            "doc": "Topics that are kept as objects once their queue was read or followed, besides those in use; "
            "until they had no message for 10 to 20 s.",
            "at_least": 1,
        },
    )
    remembered_topics: int = field(
        default=2_000_000,
        metadata={
            "doc": "Topics of which it is kept in memory where their queues end, in 73 to 100 bytes each; others are "
            "looked up in the index.",
            "at_least": 0,
            "at_most": 1_000_000_000,
        },
    )
    live_tail_entries: int = field(
        default=262_144,
        metadata={
            "doc": "Newest queue entries kept in memory for readers that are caught up.",
            "at_least": 1,
        },
    )
    live_only: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "Topic filters whose messages are delivered live but kept in no queue.",
            "shape": "TOPIC_FILTER",
            "pattern": r"(?!$)(?:(?:\+|[^+#/\0]*)/)*(?:\+|#|[^+#/\0]*)",
        },
    )
    mapped_resident_bytes: int = field(
        default=64 * MIB,
        metadata={
            "doc": "Mapped log that stays in memory before the kernel is asked to take it back.",
            "at_least": 1 * MIB,
        },
    )
    group_access: bool = field(
        default=False,
        metadata={"doc": "Let the group of the data folder read what is in it, as a backup or Spark may need."},
    )
    replicated_log: str = field(
        default="",
        metadata={
            "doc": "The topic of Kafka in whose one partition the log of a cluster lies, such as "
            "kafka://b1:9092,b2:9092,b3:9092/TOPIC; kafkas:// is TLS. Empty: this store is alone. For `penstock "
            "store`; needs `pip install penstock[kafka]`.",
            "shape": "kafka://HOST:PORT,HOST:PORT/TOPIC, or kafkas://",
            "pattern": r"|kafkas?://[^\s/@]+/[A-Za-z0-9._-]{1,249}",
            "secret": "refused",
        },
    )
    accept_two_replicas: bool = field(
        default=False,
        metadata={
            "doc": "Take a topic of two replicas for store.replicated_log. With min.insync.replicas 1, what was "
            "acknowledged may be on one broker alone, and is lost with its disk; with 2, nothing is stored while one "
            "of the two brokers is away."
        },
    )
