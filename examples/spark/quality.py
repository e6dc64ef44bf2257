"""A report about the quality of telemetry: what cannot be read, is missing, out of range, out of order, or there twice.

python quality.py DATA [--out REPORT.md]
"""

import sys
from pathlib import Path

from payloads import TELEMETRY, decoded, device
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from start import arguments, messages, session

CHECKS = {
    "unreadable payload": "at is null",
    "no temperature": "at is not null and temperature is null",
    "no vibration": "at is not null and vibration is null",
    "temperature out of -40 to 150": "temperature not between -40 and 150",
    "measured before one that was stored earlier": "at < newest_before",
    "measured in the future": "at > timestamp + interval 1 minute",
    "measured twice at one time": "copies > 1",
}


def checked(rows: DataFrame) -> DataFrame:
    """For each machine, the number of messages, and of those that fail each check."""
    readings = decoded(rows, TELEMETRY).withColumn("machine", device())
    same = Window.partitionBy("machine", "time")
    before = Window.partitionBy("machine").orderBy("log_offset").rowsBetween(Window.unboundedPreceding, -1)
    counted = readings.withColumn("newest_before", F.max("at").over(before))
    counted = counted.withColumn("copies", F.count("at").over(same))
    failures = [F.count_if(F.expr(condition)).alias(name) for name, condition in CHECKS.items()]
    return counted.groupBy("machine").agg(F.count("*").alias("messages"), *failures)


def report(by_machine: DataFrame, worst: int = 5) -> str:
    """A Markdown report: each check over all machines, and the machines with most failures."""
    total = by_machine.agg(*(F.sum(name).alias(name) for name in ("messages", *CHECKS))).first()
    assert total is not None
    count = total["messages"] or 0
    lines = ["# Telemetry quality", "", f"{count:,} messages.", "", "| check | messages | share |", "|---|---|---|"]
    for name in CHECKS:
        failed = total[name] or 0
        lines.append(f"| {name} | {failed:,} | {failed / max(count, 1):.3%} |")
    failures = sum((F.col(name) for name in CHECKS), F.lit(0))
    ranking = by_machine.withColumn("failures", failures).orderBy(F.desc("failures"), "machine").limit(worst)
    lines += ["", "| machine | messages | failures |", "|---|---|---|"]
    lines += [f"| {row.machine} | {row.messages:,} | {row.failures:,} |" for row in ranking.collect()]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--out", type=Path, help="a file for the report (default: it is printed)")
    options = parser.parse_args(argv)
    spark = session(options.master)
    text = report(checked(messages(spark, options.data, "machine/+/telemetry")).cache())
    if options.out:
        options.out.write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
