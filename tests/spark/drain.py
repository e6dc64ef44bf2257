"""A Spark program of its own, to be killed: the numbers of topic `n` from a data folder into Parquet, until it is told
to end by a file `stop` in the work folder; then it takes what is left.

    python -m tests.spark.drain DATA WORK MASTER

DRAIN_TIER: the table of the tier, if it is read too. DRAIN_ROWS: of a batch.
"""

import os
import sys
import threading
import time
from pathlib import Path

from tests.spark.session import session_builder

LOOK_EVERY_S = 0.2


def main(data: str, work: Path, master: str) -> None:
    spark = session_builder(master, work / "warehouse").getOrCreate()
    stream = spark.readStream.format("penstock").option("topic", "n").option("columns", "payload,queue_offset")
    stream = stream.option("startingOffsets", "earliest").option(
        "maxOffsetsPerTrigger", os.environ.get("DRAIN_ROWS", "1000")
    )
    if tier := os.environ.get("DRAIN_TIER"):
        stream = stream.option("tier", tier)
    sink = stream.load(data).writeStream.format("parquet").option("path", str(work / "sink"))
    sink = sink.option("checkpointLocation", str(work / "checkpoint"))
    query = sink.trigger(processingTime="0 seconds").start()
    while query.isActive and not (work / "stop").exists():
        time.sleep(LOOK_EVERY_S)
    query.stop()
    sink.trigger(availableNow=True).start().awaitTermination()
    threading.Timer(10, os._exit, (1,)).start()  # should stop() hang
    spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
