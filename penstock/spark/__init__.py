"""Penstock for Spark: `spark.read.format("penstock")` (docs/spark.md)."""

from penstock.spark.python import choose_python
from penstock.spark.source import PenstockSource, explain, register
from penstock.spark.table import table

__all__ = ["PenstockSource", "explain", "register", "table"]

choose_python()
