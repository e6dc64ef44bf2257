"""Anomalies of machines: first by z-score, then by a model that was trained on what is stored.

    python anomalies.py scores DATA OUT     windows whose mean is far from the machine's own, in OUT/scores
    python anomalies.py train DATA OUT      learns from history what windows look like; a model in OUT/model
    python anomalies.py detect DATA OUT     applies it to the stream; windows that are like none, in OUT/anomalies

Windows are of two minutes, one each minute. The model is k-means: a window that is further from every centre than all
but one in a thousand of those it was trained on is an anomaly.
"""

import json
import sys
from pathlib import Path

from payloads import TELEMETRY, decoded, device
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.clustering import KMeans, KMeansModel
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from start import arguments, message_stream, messages, run, session

FILTER = "machine/+/telemetry"
FEATURES = ["temperature", "temperature_spread", "vibration", "vibration_spread"]
LEAST_READINGS = 12  # of 24 in a window: with fewer its mean is not reliable
CENTRES = 4
USUAL = 0.999
FAR = 6.0  # standard deviations
NORMAL_MAD = 1.4826  # standard deviation of a normal distribution / median distance from its median


def windows(rows: DataFrame) -> DataFrame:
    """The features of each machine's windows of two minutes."""
    readings = decoded(rows, TELEMETRY).where("at is not null").withColumn("machine", device())
    grouped = readings.withWatermark("at", "10 minutes").groupBy(F.window("at", "2 minutes", "1 minute"), "machine")
    found = grouped.agg(
        F.count("*").alias("readings"),
        F.avg("temperature").alias("temperature"),
        F.coalesce(F.stddev("temperature"), F.lit(0.0)).alias("temperature_spread"),
        F.avg("vibration").alias("vibration"),
        F.coalesce(F.stddev("vibration"), F.lit(0.0)).alias("vibration_spread"),
    )
    return found.where(F.col("readings") >= LEAST_READINGS).selectExpr("window.start as start", "machine", *FEATURES)


def z_scores(rows: DataFrame) -> DataFrame:
    """Windows that are far from the other windows of their machine."""
    return scored(windows(rows).na.drop(subset=FEATURES)).where(is_far())


def scored(found: DataFrame) -> DataFrame:
    """Windows with their distance from the machine's other windows, in standard deviations."""
    of_machine = Window.partitionBy("machine")
    for name in ("temperature", "vibration"):
        away = found.withColumn("away", F.abs(F.col(name) - F.median(name).over(of_machine)))
        spread = F.median("away").over(of_machine) * NORMAL_MAD
        found = away.withColumn(f"{name}_z", F.col("away") / spread).drop("away")
    return found


def is_far() -> Column:
    return F.greatest("temperature_z", "vibration_z") > FAR


def train(rows: DataFrame, folder: Path) -> float:
    """Save the model, trained on windows with normal scores, and the usual distance. Returns the distance."""
    is_usual = ~F.coalesce(is_far(), F.lit(False))
    history = scored(windows(rows).na.drop(subset=FEATURES)).where(is_usual).select("machine", *FEATURES).cache()
    stages = [
        VectorAssembler(inputCols=FEATURES, outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="features", withMean=True),
        KMeans(k=CENTRES, seed=1, featuresCol="features", predictionCol="kind"),
    ]
    model = Pipeline(stages=stages).fit(history)
    apart = model.transform(history).withColumn("distance", distance(model))
    usual = float(apart.approxQuantile("distance", [USUAL], 0.0001)[0])
    model.write().overwrite().save(str(folder / "model"))
    (folder / "usual.json").write_text(json.dumps({"distance": usual}))
    history.unpersist()
    return usual


def distance(model: PipelineModel) -> Column:
    """The distance of `features` from the centre of their `kind`."""
    clusters = model.stages[-1]
    assert isinstance(clusters, KMeansModel)
    centres = F.array(*(F.array(*map(F.lit, map(float, centre))) for centre in clusters.clusterCenters()))
    squares = F.zip_with(vector_to_array("features"), centres[F.col("kind")], lambda a, b: (a - b) * (a - b))
    return F.sqrt(F.aggregate(squares, F.lit(0.0), lambda total, each: total + each))


def detect(rows: DataFrame, folder: Path) -> DataFrame:
    model = PipelineModel.load(str(folder / "model"))
    usual = json.loads((folder / "usual.json").read_text())["distance"]
    apart = model.transform(windows(rows).na.drop(subset=FEATURES)).withColumn("distance", distance(model))
    return apart.where(F.col("distance") > usual).select("start", "machine", *FEATURES, "distance")


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__, list(WORKS))
    parser.add_argument("out", type=Path, help="folder for what is found, and for the model")
    parser.add_argument("--follow", action="store_true", help="detect: do not end, take what comes")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return WORKS[options.work](session(options.master), options.data, options.out, options.follow)


def _scores(spark: SparkSession, data: str, out: Path, _follow: bool) -> int:
    z_scores(messages(spark, data, FILTER)).write.mode("overwrite").parquet(str(out / "scores"))
    print(f"{spark.read.parquet(str(out / 'scores')).count():,} windows far from their machine's own mean")
    return 0


def _train(spark: SparkSession, data: str, out: Path, _follow: bool) -> int:
    print(f"usual is a distance up to {train(messages(spark, data, FILTER), out):.2f}")
    return 0


def _detect(spark: SparkSession, data: str, out: Path, follow: bool) -> int:
    writer = detect(message_stream(spark, data, FILTER), out).writeStream.format("parquet")
    writer = writer.option("path", str(out / "anomalies")).option("checkpointLocation", str(out / "checkpoint"))
    run(writer, follow)
    print(f"{spark.read.parquet(str(out / 'anomalies')).count():,} anomalies")
    return 0


WORKS = {"scores": _scores, "train": _train, "detect": _detect}

if __name__ == "__main__":
    sys.exit(main())
