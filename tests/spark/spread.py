"""A Spark program of its own, over several executors: topic `wide` of a store goes back to it as a batch, to topic
`wide/batch`, and as a stream, to `wide/stream`; the numbers of executors and of partitions go to the file `seen`.

    python -m tests.spark.spread URL WORK MASTER
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.session import session_builder

TIMEOUT_S = 120
PARTITIONS = 4


def executors(spark: SparkSession) -> int:
    """How many there are once two have come: the driver, which has a block manager as well, is none."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return int(found)


def main(url: str, work: Path, master: str) -> None:
    spark = session_builder(master, work / "warehouse").getOrCreate()
    found = executors(spark)
    options = {"topicFilter": "wide/+/in", "token": os.environ["STORE_TOKEN"], "startingOffsets": "earliest"}
    options["minPartitions"] = str(PARTITIONS)
    batch = spark.read.format("penstock").options(**options).load(url)
    (work / "seen").write_text(json.dumps([found, batch.rdd.getNumPartitions()]))
    sink = batch.selectExpr("'wide/batch' topic", "payload").write.format("penstock").mode("append")
    sink.option("token", options["token"]).save(url)
    stream = spark.readStream.format("penstock").options(**options).load(url)
    back = stream.selectExpr("'wide/stream' topic", "payload").writeStream.format("penstock")
    back = back.option("token", options["token"]).option("checkpointLocation", str(work / "checkpoint"))
    back.trigger(availableNow=True).start(url).awaitTermination()
    threading.Timer(10, os._exit, (1,)).start()  # should stop() hang
    spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
