"""The average temperature of each MQTT topic, by Spark behind Kafka; Flink or ksqlDB would do as well.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 averages.py 127.0.0.1:9092 FOLDER

It reads the topic `telemetry`, where each record is a message {"celsius": 21.5} with its MQTT topic as the key, and
writes the averages so far to the topic `averages`. FOLDER keeps its position and its state.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def main(broker: str, folder: str) -> None:
    spark = SparkSession.builder.appName("averages").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    kafka = {"kafka.bootstrap.servers": broker}
    records = (
        spark.readStream.format("kafka")
        .options(**kafka, subscribe="telemetry", startingOffsets="earliest")
        .option("kafka.isolation.level", "read_committed")  # the flow's transactions, each message once
        .load()
    )
    reading = sf.from_json(sf.col("value").cast("string"), "celsius DOUBLE")
    averages = records.groupBy("key").agg(sf.count("*").alias("count"), sf.avg(reading["celsius"]).alias("celsius"))
    query = (
        averages.select("key", sf.to_json(sf.struct("count", "celsius")).alias("value"))
        .writeStream.format("kafka")
        .options(**kafka, topic="averages", checkpointLocation=folder)
        .outputMode("update")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
