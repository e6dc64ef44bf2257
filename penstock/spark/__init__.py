"""Penstock for Spark: `spark.read.format("penstock")` (docs/spark.md)."""

from penstock.spark.source import PenstockSource, register

__all__ = ["PenstockSource", "register"]
