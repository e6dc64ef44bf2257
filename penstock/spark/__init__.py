"""Penstock for Spark: `spark.read.format("penstock")` (docs/spark.md)."""
