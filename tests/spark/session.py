"""How tests start Spark: quiet, on loopback, with workers that import this source tree."""

import os
import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.server_process import ROOT

DEBIAN_JAVA = Path("/usr/lib/jvm/java-17-openjdk-amd64")
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a session takes half of the time until it is there
CONFIG: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def java_is_there() -> bool:
    return bool(shutil.which("java") or os.environ.get("JAVA_HOME") or DEBIAN_JAVA.exists())


def environment() -> dict[str, str]:
    """What Spark's processes need; to be set before the session is made."""
    added = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    added["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    added["JAVA_TOOL_OPTIONS"] = SHORT_LIVED
    if DEBIAN_JAVA.exists() and "JAVA_HOME" not in os.environ:
        added["JAVA_HOME"] = str(DEBIAN_JAVA)
    return added


def session_builder(master: str, warehouse: Path) -> SparkSession.Builder:
    builder = SparkSession.builder.master(master).config(map=CONFIG)
    return builder.config("spark.sql.warehouse.dir", str(warehouse))
