"""Trips of vehicles: positions with no more than five minutes between them are one trip, with its length and speed.

python trips.py DATA OUT
"""

import sys
from pathlib import Path

from payloads import POSITION, decoded, device
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from start import arguments, messages, session

PAUSE_S = 300
EARTH_KM = 6371.0


def trips(rows: DataFrame) -> DataFrame:
    positions = decoded(rows, POSITION).where("at is not null").withColumn("vehicle", device())
    in_time = Window.partitionBy("vehicle").orderBy("at", "log_offset")
    pause_s = F.unix_millis("at") / 1000 - F.lag(F.unix_millis("at") / 1000).over(in_time)
    begins = F.coalesce((pause_s > PAUSE_S).cast("int"), F.lit(1))
    numbered = positions.withColumn("trip", F.sum(begins).over(in_time))
    of_trip = Window.partitionBy("vehicle", "trip").orderBy("at", "log_offset")
    steps = numbered.withColumn("step_km", F.coalesce(_km(of_trip), F.lit(0.0)))
    return steps.groupBy("vehicle", "trip").agg(
        F.min("at").alias("start"),
        F.max("at").alias("end"),
        F.count("*").alias("positions"),
        F.sum("step_km").alias("km"),
        F.max("speed_kmh").alias("top_kmh"),
    )


def _km(order: WindowSpec) -> Column:
    """Kilometres from the previous position, along a great circle."""
    before = [F.radians(F.lag(name).over(order)) for name in ("latitude", "longitude")]  # type: ignore[arg-type]
    here = [F.radians(F.col(name)) for name in ("latitude", "longitude")]
    half = [F.sin((b - a) / 2) for a, b in zip(before, here, strict=True)]
    chord = half[0] * half[0] + F.cos(before[0]) * F.cos(here[0]) * half[1] * half[1]
    return 2 * EARTH_KM * F.asin(F.sqrt(chord))


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("out", type=Path, help="folder for the Parquet files")
    options = parser.parse_args(argv)
    spark = session(options.master)
    trips(messages(spark, options.data, "vehicle/+/position")).write.mode("overwrite").parquet(str(options.out))
    print(f"{spark.read.parquet(str(options.out)).count():,} trips in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
