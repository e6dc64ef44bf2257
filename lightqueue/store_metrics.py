"""Metrics of a store in this process: its log, its queues, its consumer groups."""

from __future__ import annotations

from collections.abc import Iterator

from lightqueue.groups.group_metrics import GROUPS, group_pages
from lightqueue.message_store import MessageStore
from lightqueue.upkeep.dispatching import LATE_BOUNDS_MS
from store.figures import Figure, Reading, Sections, Times, readings

LATE_BOUNDS_S = tuple(bound / 1000 for bound in LATE_BOUNDS_MS)

_STORE: tuple[Figure[MessageStore], ...] = (
    Figure(
        "penstock_queues",
        "gauge",
        "Queues held in memory; `remembered`: topics of which it is known where they end.",
        lambda store: store.queues.counts(),
        "kind",
    ),
    Figure(
        "penstock_stored_messages_total",
        "counter",
        "Messages given to their queues since the start, replayed ones included.",
        lambda store: store.queues.dispatcher.messages,
    ),
    Figure(
        "penstock_queue_entries_total",
        "counter",
        "Entries added to queues since the start, replayed ones included.",
        lambda store: store.queues.dispatcher.entries,
    ),
    Figure(
        "penstock_index_pending_entries",
        "gauge",
        "Queue entries that the index does not have yet.",
        lambda store: store.queues.dispatcher.pending,
    ),
    Figure(
        "penstock_index_writes_total",
        "counter",
        "Batches written to the index.",
        lambda store: store.index.writes,
    ),
    Figure(
        "penstock_sessions_expired_total",
        "counter",
        "Sessions that ended because nobody came back for them in time.",
        lambda store: store.absent.expired,
    ),
    Figure(
        "penstock_waiting_messages_of_absent_sessions",
        "gauge",
        "Messages that wait for sessions whose client is away; 50 sessions are counted at a time.",
        lambda store: store.waiting.messages,
    ),
    Figure(
        "penstock_retained_messages",
        "gauge",
        "Topics with a retained message, as of the last write of the index.",
        lambda store: len(store.retained),
    ),
    Figure(
        "penstock_delayed_pending",
        "gauge",
        "Delayed messages that are yet to be dispatched, as of the last write of the index.",
        lambda store: len(store.delayed),
    ),
    Figure(
        "penstock_delayed_late_seconds",
        "histogram",
        "How long after they were due delayed messages were dispatched.",
        lambda store: Times(store.dispatching.late, store.dispatching.late_ms / 1000, LATE_BOUNDS_S),
    ),
    Figure(
        "penstock_delayed_dropped_total",
        "counter",
        "Delayed messages that were not dispatched: expired by then, or not in the log any more; and, with wills, "
        "not_allowed any more.",
        lambda store: {
            "expired": store.dispatching.expired,
            "lost": store.dispatching.lost,
            "not_allowed": store.dispatching.left.refused,
        },
        "reason",
    ),
    Figure(
        "penstock_delayed_rolled_total",
        "counter",
        "Times that a delayed message rolled on: retention appended it again, as it was not due yet.",
        lambda store: store.upkeep.rolled,
    ),
    Figure(
        "penstock_left_messages_waiting",
        "gauge",
        "Wills and delayed messages that are due and wait for a gateway to judge them.",
        lambda store: len(store.dispatching.left),
    ),
    Figure(
        "penstock_log_first_log_offset",
        "gauge",
        "log_offset of the oldest record that is kept.",
        lambda store: store.log.first,
    ),
    Figure(
        "penstock_log_safe_log_offset",
        "gauge",
        "log_offset before which everything is as durable as the flush policy promises.",
        lambda store: store.safe,
    ),
    Figure("penstock_log_end_log_offset", "gauge", "log_offset behind the newest record.", lambda store: store.end),
    Figure(
        "penstock_log_bytes",
        "gauge",
        "Bytes that the log holds.",
        lambda store: store.end - store.log.first,
    ),
    Figure("penstock_log_segments", "gauge", "Files of the log.", lambda store: store.log.file_count),
    Figure("penstock_log_appends_total", "counter", "Batches appended to the log.", lambda store: store.log.appends),
    Figure(
        "penstock_log_syncs_total",
        "counter",
        "Times that the log was synced to disk (fdatasync).",
        lambda store: store.log.syncs,
    ),
    Figure(
        "penstock_log_sync_duration_seconds",
        "histogram",
        "How long each sync of the log to disk took.",
        lambda store: Times.of(store.log.sync_times),
    ),
    Figure(
        "penstock_disk_free_bytes",
        "gauge",
        "Room on the log's disk for the user that the store runs as; it keeps store.reserve_bytes of it.",
        lambda store: store.log.disk_free_bytes,
    ),
    Figure(
        "penstock_log_sync_seconds_total",
        "counter",
        "Seconds spent in syncing the log.",
        lambda store: store.log.sync_times.sum_s,
    ),
    Figure(
        "penstock_log_lost_bytes",
        "gauge",
        "Bytes of the log that are in quarantine: damaged, missing, or behind what the disk had confirmed.",
        lambda store: {str(kind): size for kind, size in store.log.lost_bytes.items()},
        "kind",
    ),
    Figure(
        "penstock_clock_jumps_total",
        "counter",
        "How often the store's clock was set by store.clock_jump_s or more.",
        lambda store: store.clock.jumps,
    ),
    Figure(
        "penstock_scrub_bytes_total",
        "counter",
        "Bytes of the log's sealed files that the scrubber has read again.",
        lambda store: store.log.scrubber.read_bytes,
    ),
    Figure(
        "penstock_scrub_passes_total",
        "counter",
        "Passes of the scrubber over all of the log's sealed files that came to their end.",
        lambda store: store.log.scrubber.passes,
    ),
    Figure(
        "penstock_scrub_damaged_bytes",
        "gauge",
        "Bytes in which the scrubber found damage when it last looked there, and files that have changed although "
        "their records are valid; 0 after the next start, which puts what is damaged in quarantine.",
        lambda store: {str(kind): size for kind, size in store.log.scrubber.found_bytes().items()},
        "kind",
    ),
    Figure(
        "penstock_log_replayed_bytes",
        "gauge",
        "Bytes of the log that were replayed at start, because the index did not have them.",
        lambda store: store.replayed_bytes,
    ),
    Figure(
        "penstock_reader_lost_bytes_total",
        "counter",
        "Bytes of the log that retention dropped before a reader, for which it waits, had come to them.",
        lambda store: store.log_readers.lost(),
        "reader",
    ),
)

STORE: Sections[MessageStore] = {"The store": _STORE}


def group_steps(messages: MessageStore | None) -> Iterator[list[Reading]]:
    """The figures of consumer groups, some groups at a time."""
    for page in group_pages(messages.groups) if messages is not None else ():
        yield list(readings(GROUPS, page))
