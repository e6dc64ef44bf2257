"""From the store through Spark to a stock subscriber under SIGKILL: each message once, whatever is killed.

The driver's whole process group is killed anywhere in a batch, and once it has published and Spark does not know; the
store while messages come in. PENSTOCK_SPARK_KILLS says how often (`make kill-spark`: 20 times, which takes minutes).
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from loadtest.chaos.cluster import Cluster
from penstock.columns import Messages
from penstock.spark.folder import LogFolder
from tests.spark.driver_process import KILLS, TIMEOUT_S, Driver
from tests.spark.test_kills import Publisher

STORE_KILLS = max(1, KILLS // 4)


class Counting:
    """A stock subscriber at QoS 2, whose session outlives its connections: how often it was given each payload."""

    def __init__(self, port: int) -> None:
        self.got: Counter[int] = Counter()
        self._came = threading.Condition()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "counting", protocol=MQTTProtocolVersion.MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        subscribed = threading.Event()
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.subscribe("echo", qos=2)
        self._client.loop_start()
        assert subscribed.wait(TIMEOUT_S)

    def _on_message(self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        with self._came:
            self.got[int(message.payload)] += 1
            self._came.notify()

    def wait_for(self, count: int) -> Counter[int]:
        with self._came:
            self._came.wait_for(lambda: self.got.total() >= count, TIMEOUT_S)
        return self.got

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With frames so small that epochs which catch up take several."""
    small = {"wire.max_frame_bytes": 262144, "wire.credit_bytes": 262144, "gateway.maximum_packet_size_bytes": 30000}
    cluster = Cluster(tmp_path, 1, {"store.flush": "async", **small}, wires=False)
    yield cluster
    cluster.close()


Start = Callable[..., Driver]


@pytest.fixture
def start_driver(spark_environment: None, cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Starts drivers that go on with each other's work; none is left at the end."""
    started: list[Driver] = []
    url = "penstock" + cluster.store_url.removeprefix("tcp")

    def start(**env: str) -> Driver:
        started.append(Driver(url, tmp_path / "work", "local[2]", "tests.spark.echo", env))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            driver.kill()


def stored(cluster: Cluster, topic: bytes) -> int:
    """Messages of a topic in the log: a publisher that was not answered may have sent some of them twice."""
    log = LogFolder(str(cluster.data))
    found = 0
    for messages in log.messages(0, log.end()):
        found += count_of(messages, topic)
    return found


def count_of(messages: Messages, topic: bytes) -> int:
    topics, numbers = messages.distinct_topics()
    return int((numbers == topics.index(topic)).sum()) if topic in topics else 0


def test_each_message_comes_back_once(cluster: Cluster, start_driver: Start, tmp_path: Path) -> None:
    subscriber = Counting(cluster.port)
    publisher = Publisher(cluster)
    randomly = random.Random(5)
    store_kills = set(randomly.sample(range(KILLS), STORE_KILLS))
    for number in range(KILLS):
        amid = number % 2 == 0
        driver = start_driver() if amid else start_driver(STOP_PUBLISHED="1")
        if amid:
            driver.wait_for_batches(driver.batches() + 1)
            time.sleep(randomly.uniform(0, 0.7))
        else:
            driver.wait_for_file("published")
            (tmp_path / "work" / "published").unlink()
        if number in store_kills:
            cluster.store.kill()
            time.sleep(randomly.uniform(0, 0.2))
        driver.kill()
        if number in store_kills:
            cluster.store.start()
    driver = start_driver()
    driver.wait_for_batches(driver.batches() + 1)
    for _ in range(STORE_KILLS):
        batches = driver.batches()
        cluster.store.restart()
        driver.wait_for_batches(batches + 1)
    publisher.stop()
    driver.finish()
    count = stored(cluster, b"n")
    assert count >= publisher.acknowledged
    assert subscriber.wait_for(count) == dict.fromkeys(range(count), 1)
    assert stored(cluster, b"echo") == count
    subscriber.leave()
