"""Devices that fall silent, and that come back: an alert for each, to the devices and their people.

    python offline.py DATA OUT --silent 300 --store penstock://localhost:7700

A machine is offline when the fleet's time (that of the others' messages) has gone on for so many seconds without it.
Alerts go to the topic alerts/machine/N, retained, so that whoever subscribes later knows as well; without --store they
go to Parquet in OUT.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from payloads import TELEMETRY, decoded, device
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from start import arguments, message_stream, run, session

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers may not have this file

LATE = "1 minute"
ALERT = "machine string, state string, since timestamp"


class Watch(StatefulProcessor):
    """The state of one machine: when it last sent a message, and whether it is known to be offline."""

    def __init__(self, silent_ms: int) -> None:
        self._silent_ms = silent_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "last_ms long, is_offline boolean")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """A silence may also lie between two rows of one batch."""
        times = np.sort(np.concatenate([_ms(some["at"]) for some in rows]))
        last_ms, is_offline = self._seen.get() or (int(times[0]), False)
        before = np.maximum(np.append(last_ms, times[:-1]), last_ms)
        breaks = times - before > self._silent_ms
        if is_offline:  # the first new message ends it
            breaks |= (before == last_ms) & (times > last_ms)
        said = []
        for at in np.flatnonzero(breaks).tolist():
            if not is_offline:
                said.append(("offline", before[at]))
            said.append(("online", times[at]))
            is_offline = False
        self._remember(max(last_ms, int(times[-1])), is_offline)
        if said:
            yield _alerts(key, said)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        last_ms, _ = self._seen.get()
        self._seen.update((last_ms, True))
        yield _alerts(key, [("offline", last_ms)])

    def _remember(self, last_ms: int, is_offline: bool) -> None:
        self._seen.update((last_ms, is_offline))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        if not is_offline:
            self._handle.registerTimer(last_ms + self._silent_ms)

    def close(self) -> None:
        pass


def _ms(times: pd.Series) -> Any:
    return times.astype("datetime64[ms]").astype("int64").to_numpy()


def _alerts(key: Any, said: list[tuple[str, int]]) -> pd.DataFrame:
    since = pd.to_datetime([time_ms for _, time_ms in said], unit="ms")
    return pd.DataFrame({"machine": key[0], "state": [state for state, _ in said], "since": since})


def alerts(messages: DataFrame, silent_s: int) -> DataFrame:
    readings = decoded(messages, TELEMETRY).where("at is not null").withColumn("machine", device())
    grouped = readings.select("machine", "at").withWatermark("at", LATE).groupBy("machine")
    return grouped.transformWithStateInPandas(Watch(silent_s * 1000), ALERT, "Append", "EventTime")


def as_messages(found: DataFrame) -> DataFrame:
    """Rows for the sink, which publishes each once, also after a kill."""
    return found.selectExpr("concat('alerts/', machine) topic", "to_json(struct(state, since)) payload", "true retain")


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("out", type=Path, help="folder for the checkpoint, and for alerts without --store")
    parser.add_argument("--silent", type=int, default=300, help="seconds after which one is offline (%(default)s)")
    parser.add_argument("--store", help="where alerts are published, such as penstock://localhost:7700")
    parser.add_argument("--follow", action="store_true", help="do not end, take what comes")
    options = parser.parse_args(argv)
    spark = session(options.master)
    found = alerts(message_stream(spark, options.data, "machine/+/telemetry"), options.silent)
    if options.store:
        writer = as_messages(found).writeStream.format("penstock").option("path", options.store)
    else:
        writer = found.writeStream.format("parquet").option("path", str(options.out / "alerts"))
    writer = writer.option("checkpointLocation", str(options.out / "checkpoint"))
    run(writer, options.follow)
    return 0


if __name__ == "__main__":
    sys.exit(main())
