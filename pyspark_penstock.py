"""Found by Spark, which looks for modules of such a name: makes `format("penstock")` known without a call."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
