"""A Kafka broker in KRaft mode as a subprocess, for tests of what talks to Kafka."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtest.ports import HOST, STOP_TIMEOUT_S, free_port
from tests.support.kafka_secured import KafkaSecured
from tests.support.server_process import ROOT

JARS = ROOT / "tests/kafka/jars"
CLUSTER_ID = "cGVuc3RvY2stdGVzdHMtMQ"  # 16 bytes in base64, as Kafka wants it
ONE_BROKER = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}
FOR_TESTS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    # After a kill the controller takes the broker back only when the session that it had has ended.
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3_000,
    "log.index.size.max.bytes": 1_048_576,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "log.cleaner.dedupe.buffer.size": 16_777_216,
}
LISTENERS = {
    "CONTROLLER": "PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "RELAYED": "PLAINTEXT",
}
JAVA_OPTIONS = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # it is there in half of the time
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
START_TIMEOUT_S = 240  # it takes two CPU-seconds or more, on a machine that may be busy


def missing_for_kafka() -> str:
    """What is missing here, with the remedy; empty if nothing is."""
    if not shutil.which("java"):
        return "java is missing; apt-get install openjdk-17-jre-headless"
    if not JARS.is_dir():
        return "Kafka is missing; make tests/kafka/jars (it needs mvn: apt-get install maven)"
    return ""


@dataclass(frozen=True)
class KafkaNode:
    """What one process of a cluster is. `voters`: ports of all controllers by node id; a single node has its own."""

    node_id: int = 1
    roles: tuple[str, ...] = ("broker", "controller")
    port: int = field(default_factory=free_port)
    controller_port: int = field(default_factory=free_port)
    voters: Mapping[int, int] = field(default_factory=dict)
    secured: KafkaSecured | None = None
    relayed_port: int = 0  # another one, at which it names relay_port as its own
    relay_port: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)
    java_options: tuple[str, ...] = JAVA_OPTIONS

    def properties(self, folder: Path) -> dict[str, object]:
        listeners = []
        if "broker" in self.roles:
            listeners.append(f"PLAINTEXT://{HOST}:{self.port}")
        if "controller" in self.roles:
            listeners.append(f"CONTROLLER://{HOST}:{self.controller_port}")
        if self.secured is not None:
            listeners.append(f"SASL_SSL://{HOST}:{self.secured.port}")
        advertised = [each for each in listeners if not each.startswith("CONTROLLER")]
        if self.relayed_port:
            listeners.append(f"RELAYED://{HOST}:{self.relayed_port}")
            advertised.append(f"RELAYED://{HOST}:{self.relay_port}")
        voters = self.voters or {self.node_id: self.controller_port}
        return {
            "process.roles": ",".join(self.roles),
            "node.id": self.node_id,
            "listeners": ",".join(listeners),
            **({"advertised.listeners": ",".join(advertised)} if advertised else {}),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
            "controller.quorum.voters": ",".join(f"{node}@{HOST}:{port}" for node, port in voters.items()),
            "log.dirs": folder / "data",
            **FOR_TESTS,
            **(ONE_BROKER if not self.voters else {}),
            **(self.secured.properties() if self.secured is not None else {}),
            **self.settings,
        }


class KafkaBroker:
    """Started when it is made; start() begins it again on the same folder and ports."""

    def __init__(self, folder: Path, node: KafkaNode | None = None) -> None:
        self.node = node or KafkaNode()
        self.url = f"{HOST}:{self.node.port}"
        self._config = folder / "server.properties"
        self._log = folder / "kafka.log"
        folder.mkdir(exist_ok=True)
        lines = [f"{name}={value}" for name, value in self.node.properties(folder).items()]
        self._config.write_text("\n".join(lines))
        self._format()
        self.process: subprocess.Popen[bytes]
        self.start()

    def _format(self) -> None:
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(self._config)]
        done = subprocess.run(_java(*tool), capture_output=True, text=True, timeout=START_TIMEOUT_S)
        if done.returncode:
            raise RuntimeError(f"Kafka's storage was not formatted:\n{done.stdout}{done.stderr}")

    def start(self) -> None:
        """Returns when the broker can be used; of a node that is a controller only, at once."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                _java("kafka.Kafka", str(self._config), options=self.node.java_options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if "broker" in self.node.roles:
            try:
                self._wait_until_ready()
            except BaseException:
                self.kill()
                raise

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        admin = self.admin()
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"Kafka exited with {self.process.returncode}:\n{self.log_text()}")
            try:
                # A broker that the controller has not taken yet is not listed.
                if self.node.node_id in admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"Kafka cannot be used after {START_TIMEOUT_S} s:\n{self.log_text()}")

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.url, "log_level": 0, "reconnect.backoff.max.ms": 200})

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> None:
        """`config`: of the topic, with __ for the dots: cleanup__policy="compact"."""
        settings = {key.replace("__", "."): str(value) for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = self.admin()
        admin.create_topics([new])[name].result(START_TIMEOUT_S)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            made = admin.list_topics(name, timeout=START_TIMEOUT_S).topics[name].partitions
            if len(made) == partitions and all(each.leader >= 0 for each in made.values()):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"topic {name} has no leaders after {START_TIMEOUT_S} s")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed or closed."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """SIGSTOP: its sockets stay open, and it answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()


def _java(*arguments: str, options: Sequence[str] = JAVA_OPTIONS) -> list[str]:
    return ["java", *options, "-cp", f"{JARS}/*", *arguments]
