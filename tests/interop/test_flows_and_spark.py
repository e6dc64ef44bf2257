"""The example of docs/flows.md: devices, a flow, Kafka, Spark, Kafka, a flow, and a topic again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.spark.session import environment
from tests.support.flows_part import FlowsPart
from tests.support.kafka_broker import KafkaBroker
from tests.support.server_process import ROOT
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

EXAMPLE = ROOT / "examples/flows"
PATIENCE_S = 240  # Spark starts, and runs its first batches, on a machine that may be busy
JARS = ROOT / "tests/kafka/spark-jars"


@pytest.mark.skipif(not JARS.is_dir(), reason="make tests/kafka/spark-jars (it needs mvn)")
@pytest.mark.catalogue("I33")
def test_averages_come_back(kafka: KafkaBroker, tmp_path: Path) -> None:
    store = StoreProcess(tmp_path)
    for topic in ("telemetry", "averages"):
        kafka.create_topic(topic)
    text = (EXAMPLE / "flows.toml").read_text().replace("127.0.0.1:9092", kafka.url)
    flows = FlowsPart(store, tmp_path, text)
    program = [sys.executable, str(EXAMPLE / "averages.py"), kafka.url, str(tmp_path / "state")]
    jars = ",".join(map(str, sorted(JARS.glob("*.jar"))))
    submitted = {"PYSPARK_SUBMIT_ARGS": f"--master local[2] --conf spark.ui.enabled=false --jars {jars} pyspark-shell"}
    with (tmp_path / "averages.log").open("w") as log:
        averages = subprocess.Popen(
            program,
            env=os.environ | environment() | submitted,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with Client(store.url.replace("tcp://", "penstock://")) as client:
            for celsius in range(10):
                client.publish(f"plant/{celsius % 2}/temp", json.dumps({"celsius": celsius}))

            def newest(number: int) -> object:
                found = [json.loads(each.payload) for each in client.read(f"averages/plant/{number}/temp")]
                return found[-1] if found else None

            wait_until(lambda: newest(0) == {"count": 5, "celsius": 4.0}, PATIENCE_S)
            wait_until(lambda: newest(1) == {"count": 5, "celsius": 5.0}, PATIENCE_S)
    finally:
        os.killpg(averages.pid, signal.SIGKILL)  # Java as well
        averages.wait()
        flows.kill()
        store.close()
