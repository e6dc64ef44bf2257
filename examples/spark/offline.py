"""Devices that fall silent, and that come back: an alert for each, to the devices and their people.

    python offline.py DATA OUT --silent 300 --store penstock://localhost:7700

A machine is offline when the fleet's time (that of the others' messages) has gone on for so many seconds without it.
Alerts go to the topic alerts/machine/N, retained, so that whoever subscribes later knows as well; without --store they
go to Parquet in OUT.
"""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from payloads import TELEMETRY, decoded, device
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from start import arguments, message_stream, run, session

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not have this file

LATE = "1 minute"
ALERT = "machine string, state string, since timestamp"


class Watch(StatefulProcessor):
    """Of one machine: when it was last heard of, and whether that is known to be long ago."""

    def __init__(self, silent_ms: int) -> None:
        self._silent_ms = silent_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "last_ms long, is_offline boolean")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """A silence may lie between two rows of one batch as well."""
        times = sorted(_ms(row.at) for row in rows)
        last_ms, is_offline = self._seen.get() or (times[0], False)
        for time_ms in times:
            if not is_offline and time_ms > last_ms + self._silent_ms:
                yield _alert(key, "offline", last_ms)
                is_offline = True
            if is_offline and time_ms > last_ms:
                yield _alert(key, "online", time_ms)
                is_offline = False
            last_ms = max(last_ms, time_ms)
        self._seen.update((last_ms, is_offline))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        if not is_offline:
            self._handle.registerTimer(last_ms + self._silent_ms)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        last_ms, _ = self._seen.get()
        self._seen.update((last_ms, True))
        yield _alert(key, "offline", last_ms)

    def close(self) -> None:
        pass


def _ms(time: Any) -> int:
    return round(time.timestamp() * 1000)


def _alert(key: Any, state: str, since_ms: int) -> Row:
    return Row(machine=key[0], state=state, since=datetime.fromtimestamp(since_ms / 1000))


def alerts(messages: DataFrame, silent_s: int) -> DataFrame:
    readings = decoded(messages, TELEMETRY).where("at is not null").withColumn("machine", device())
    grouped = readings.select("machine", "at").withWatermark("at", LATE).groupBy("machine")
    return grouped.transformWithState(Watch(silent_s * 1000), ALERT, "Append", "EventTime")


def to_store(url: str) -> Callable[[DataFrame, int], None]:
    """Publishes a batch of alerts. After a kill the last batch may come a second time, with the same content."""

    def publish(batch: DataFrame, _number: int) -> None:
        from penstock.sync import Client

        with Client(url) as client:
            for alert in batch.toLocalIterator():
                payload = json.dumps({"state": alert.state, "since": alert.since.isoformat()})
                client.publish(f"alerts/{alert.machine}", payload, retain=True)

    return publish


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("out", type=Path, help="folder for the checkpoint, and for alerts without --store")
    parser.add_argument("--silent", type=int, default=300, help="seconds after which one is offline (%(default)s)")
    parser.add_argument("--store", help="where alerts are published, such as penstock://localhost:7700")
    parser.add_argument("--follow", action="store_true", help="do not end, take what comes")
    options = parser.parse_args(argv)
    spark = session(options.master)
    found = alerts(message_stream(spark, options.data, "machine/+/telemetry"), options.silent)
    writer = found.writeStream.option("checkpointLocation", str(options.out / "checkpoint"))
    if options.store:
        writer = writer.foreachBatch(to_store(options.store))
    else:
        writer = writer.format("parquet").option("path", str(options.out / "alerts"))
    run(writer, options.follow)
    return 0


if __name__ == "__main__":
    sys.exit(main())
