"""Penstock for Spark: `spark.read.format("penstock")` (docs/spark.md)."""

from penstock.spark.python import choose_python
from penstock.spark.source import PenstockSource, explain, register

__all__ = ["PenstockSource", "explain", "register"]

choose_python()
