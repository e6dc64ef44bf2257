"""Exports a store's messages to Parquet, step by step; each step is compared with the store before it counts.

    python -m penstock.spark.export DATA TARGET

TARGET/data/date=D/level=L/*.parquet   by day (UTC) of storing and first level of the topic; the rows of a file are
                                       sorted by topic, then log_offset
TARGET/manifest.json                   the files that count (manifest.py)

Run it again to export newer messages. After a kill at any moment the manifest is the previous one, and the next run
removes leftover files.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import CaseInsensitiveDict

from penstock.columns import COLUMNS
from penstock.spark.errors import DataLost, ExportUnusable, SparkSourceError
from penstock.spark.folder import LogFolder
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.manifest import (
    FILES,
    ExportManifest,
    delete_leftovers,
    locked,
    new_files,
    read_manifest,
    write_manifest,
)
from penstock.spark.reading import check_position
from penstock.spark.source import PenstockSource, register

STEP_BYTES = 4 << 30
FILE_BYTES = 256 << 20  # of log for one task
MB = 1_000_000
Say = Callable[[str], None]


@dataclass(frozen=True)
class Export:
    """The data folder, the target folder, and how much of the log one step exports."""

    data: str
    target: Path
    step_bytes: int = STEP_BYTES
    allow_gap: bool = False

    def run(self, spark: SparkSession, say: Say) -> ExportManifest:
        """Export everything in the log that is not in the manifest yet. Raises SparkSourceError."""
        with locked(self.target):
            log = LogFolder(self.data)
            manifest = read_manifest(self.target) or ExportManifest(log.base(), log.base())
            removed = delete_leftovers(self.target, manifest)
            if removed:
                say(f"removed {removed:,} files that an unfinished export has left")
            end = log.end()
            for start, until in self._steps(log, manifest.until, end):
                say(f"log_offset {start:,} to {until:,} of {end:,} ({(until - start) / MB:,.0f} MB) ...")
                self._write(spark, start, until)
                added = new_files(self.target, manifest)
                following = manifest.with_files(until, added)
                rows = sum(file.rows for file in added)
                self._verify(spark, [file.path for file in added], start, until)
                write_manifest(self.target, following)
                manifest = following
                say(f"  {rows:,} rows in {len(added):,} files, equal to the store's")
            say(f"{manifest.rows:,} rows in {len(manifest.files):,} files, up to log_offset {manifest.until:,}")
            return manifest

    def _steps(self, log: LogFolder, start: int, end: int) -> Iterator[tuple[int, int]]:
        try:
            start = check_position(LogAndTier(log), start, fail_on_data_loss=not self.allow_gap)
        except DataLost as error:
            raise ExportUnusable(
                self.target, f"{str(error).split(';')[0]}; --allow-gap goes on behind what is gone"
            ) from error
        while start < end:
            cut = log.nearest(start + self.step_bytes) if start + self.step_bytes < end else end
            until = cut if cut > start else end
            yield start, until
            start = until

    def _rows(self, spark: SparkSession, start: int, until: int) -> DataFrame:
        """The store's rows. Fails if retention drops some meanwhile, with allow_gap as well: a step has all rows of its
        range.
        """
        places = {"startingOffsets": json.dumps({"log": start}), "endingOffsets": json.dumps({"log": until})}
        return spark.read.format("penstock").options(**places).load(self.data)

    def _write(self, spark: SparkSession, start: int, until: int) -> None:
        level = F.substring_index("topic", "/", 1)
        rows = self._rows(spark, start, until).withColumns({"date": _day(), "level": level})
        order = ("date", "level", "topic", "log_offset")
        tasks = max(1, (until - start) // FILE_BYTES)
        sorted_rows = rows.repartitionByRange(tasks, *order).sortWithinPartitions(*order)
        sorted_rows.write.partitionBy("date", "level").mode("append").parquet(str(self.target / FILES))

    def _verify(self, spark: SparkSession, files: list[str], start: int, until: int) -> None:
        """Raise ExportUnusable unless the files have the same rows as the store."""
        store = _fingerprint(self._rows(spark, start, until))
        exported = _fingerprint(_parquet(spark, self.target, files)) if files else (0, 0)
        if store != exported:
            raise ExportUnusable(self.target, f"what was written ({exported}) is not what the store has ({store})")


def read_export(spark: SparkSession, target: Path) -> DataFrame:
    """The rows of the files that count, with the columns `date` and `level`. Raises ExportUnusable."""
    manifest = read_manifest(target)
    if manifest is None or not manifest.files:
        raise ExportUnusable(target, "has no exported files")
    return _parquet(spark, target, [file.path for file in manifest.files])


def _parquet(spark: SparkSession, target: Path, files: list[str]) -> DataFrame:
    root = target.absolute() / FILES
    source = PenstockSource(CaseInsensitiveDict({"path": str(target)}))
    types = source.schema().add("date", "date").add("level", "string")
    return spark.read.schema(types).option("basePath", str(root)).parquet(*(str(root / file) for file in files))


def _day() -> Column:
    """The day of storing in UTC, in any time zone of the session."""
    return F.date_from_unix_date(F.floor(F.unix_millis("timestamp") / 86_400_000).cast("int"))


def _fingerprint(rows: DataFrame) -> tuple[int, int]:
    """Number of rows, and the sum of their hashes, which does not depend on their order."""
    hashed = rows.select(F.xxhash64(*COLUMNS).cast("decimal(38,0)").alias("hash"))
    count, total = hashed.agg(F.count("*"), F.sum("hash")).collect()[0]
    return count, int(total or 0)


def main() -> int:
    options = _arguments()
    builder = SparkSession.builder.appName("penstock export")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    spark = (builder.master(options.master) if options.master else builder).getOrCreate()
    register(spark)
    export = Export(options.data, Path(options.target), options.step_mb * MB, options.allow_gap)
    try:
        export.run(spark, lambda line: print(line, flush=True))
    except SparkSourceError as error:
        print(f"penstock export: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.spark.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", metavar="DATA", help="the data folder of a store, whether or not it runs")
    parser.add_argument("target", metavar="TARGET", help="a folder for the files; made where it is missing")
    parser.add_argument("--master", help="Spark's master (default: as spark-submit says, else local[*])")
    parser.add_argument(
        "--step-mb",
        type=int,
        default=STEP_BYTES // MB,
        help="MB of log after which the manifest is renewed (%(default)s)",
    )
    parser.add_argument(
        "--allow-gap", action="store_true", help="go on where retention has dropped what was not exported yet"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
