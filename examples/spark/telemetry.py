"""Fleet telemetry: temperature and vibration of each machine by the minute, into Parquet.

    python telemetry.py DATA OUT

Machines send JSON or CBOR to machine/N/telemetry. What comes more than ten minutes late, by the machines' own clocks,
is left out. Run it again to go on where it ended; killed anywhere, each minute is written once.
"""

import sys
from pathlib import Path

from payloads import TELEMETRY, decoded, device
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from start import arguments, message_stream, run, session

LATE = "10 minutes"
WINDOW = "1 minute"


def by_minute(messages: DataFrame) -> DataFrame:
    readings = decoded(messages, TELEMETRY).where("at is not null").withColumn("machine", device())
    windows = readings.withWatermark("at", LATE).groupBy(F.window("at", WINDOW), "machine")
    return windows.agg(
        F.count("*").alias("readings"),
        F.avg("temperature").alias("temperature"),
        F.max("temperature").alias("hottest"),
        F.stddev("vibration").alias("vibration_spread"),
    ).selectExpr("window.start as minute", "machine", "readings", "temperature", "hottest", "vibration_spread")


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("out", type=Path, help="folder for the Parquet files and the checkpoint")
    parser.add_argument("--follow", action="store_true", help="do not end, take what comes")
    options = parser.parse_args(argv)
    spark = session(options.master)
    minutes = by_minute(message_stream(spark, options.data, "machine/+/telemetry"))
    writer = minutes.writeStream.format("parquet").option("path", str(options.out / "minutes"))
    run(writer.option("checkpointLocation", str(options.out / "checkpoint")), options.follow)
    print(f"{spark.read.parquet(str(options.out / 'minutes')).count():,} minutes in {options.out / 'minutes'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
