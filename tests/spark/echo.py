"""A Spark program of its own, to be killed: messages of topic `n` of a store go back to it, to topic `echo`, with their
queue_offsets as payloads, until it is told to end by a file `stop` in the work folder; then it takes what is left.

    python -m tests.spark.echo URL WORK MASTER

With STOP_PUBLISHED in the environment it stands still once an epoch is published, before Spark puts that down, and
makes the file `published`.
"""

import os
import sys
import threading
import time
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.sink import StreamWriter, Target, target_of
from penstock.spark.source import PenstockSource
from tests.spark.session import session_builder

LOOK_EVERY_S = 0.2


class StandingStill(StreamWriter):
    def __init__(self, target: Target, work: Path) -> None:
        super().__init__(target)
        self._work = work

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if any(messages):
            (self._work / "published").touch()
            time.sleep(3600)


class StandingStillSource(PenstockSource):
    @classmethod
    def name(cls) -> str:
        return "standing-still"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        options = dict(self.options)
        work = Path(options.pop("work"))
        return StandingStill(target_of(options, schema, overwrite), work)


def main(url: str, work: Path, master: str) -> None:
    spark = session_builder(master, work / "warehouse").getOrCreate()
    stream = spark.readStream.format("penstock").option("topic", "n").option("columns", "queue_offset")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 5000)
    rows = stream.load(url).selectExpr("cast(queue_offset as string) payload")
    sink = rows.writeStream.format("penstock").option("topic", "echo").option("qos", 2)
    if "STOP_PUBLISHED" in os.environ:
        spark.dataSource.register(StandingStillSource)
        sink = sink.format("standing-still").option("work", str(work))
    sink = sink.option("checkpointLocation", str(work / "checkpoint"))
    query = sink.trigger(processingTime="0 seconds").start(url)
    while query.isActive and not (work / "stop").exists():
        time.sleep(LOOK_EVERY_S)
    query.stop()
    sink.trigger(availableNow=True).start(url).awaitTermination()
    threading.Timer(10, os._exit, (1,)).start()  # should stop() hang
    spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
