"""Several executors, which share nothing but the address of a store: sources and sinks, as batch and as stream."""

import json
from collections import Counter
from pathlib import Path

from loadtest.chaos.cluster import Cluster
from penstock.spark.source import PenstockSource
from tests.spark.driver_process import Driver
from tests.spark.fleet import Sent, publish
from tests.spark.spread import PARTITIONS

TOKEN = "s3cret"


def payloads(data: Path, topic: str) -> Counter[bytes]:
    source = PenstockSource({"path": str(data), "topic": topic, "columns": "payload"})  # type: ignore[arg-type]
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return Counter(payload for batch in batches for payload in batch.column(0).to_pylist())


def test_over_the_wire_and_back(apart: Cluster, spark_environment: None, tmp_path: Path) -> None:
    sent = [Sent(f"wide/{number % 7}/in", b"%d" % number) for number in range(3000)]
    publish(apart.port, sent, "wide")
    url = "penstock" + apart.store_url.removeprefix("tcp")
    driver = Driver(url, tmp_path / "work", "local-cluster[2,1,1024]", "tests.spark.spread", {"STORE_TOKEN": TOKEN})
    try:
        driver.finish()
    finally:
        if driver.process.poll() is None:
            driver.kill()
    assert json.loads((tmp_path / "work" / "seen").read_text()) == [2, PARTITIONS]
    once = Counter(each.payload for each in sent)
    assert payloads(apart.data, "wide/batch") == once
    assert payloads(apart.data, "wide/stream") == once
