"""Ten thousand subscribers cost a message nothing: one record, and an entry for each queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.chaos.cluster import Cluster
from tests.interop.programs import run
from tests.support.mqtt_swarm import Swarm, raise_descriptor_limit

CLIENTS = 10_000
PATIENCE_S = 120
FILTERS = ("a/b/c", "a/#", "+/b/c", "a/+/c", "a/b/+", "a/b/#", "#")
OF_THEIR_OWN = 5  # the first two are the topic's queue and its first level's, which are there anyway
ENTRIES, MESSAGES = "penstock_queue_entries_total", "penstock_stored_messages_total"


@pytest.mark.catalogue("E15")
def test_a_message_is_one_record_and_an_entry_for_each_filter(tmp_path: Path) -> None:
    raise_descriptor_limit(CLIENTS)
    cluster = Cluster(tmp_path, 2, {"store.flush": "async", "gateway.sys_interval_s": 0}, wires=False)
    try:
        with Swarm("device-", [FILTERS[i % len(FILTERS)] for i in range(CLIENTS)]) as swarm:
            swarm.connect(cluster.ports)
            swarm.poll(swarm.all_online, PATIENCE_S)
            entries, records = (cluster.store.metric(name) for name in (ENTRIES, MESSAGES))
            run("mosquitto_pub", "-p", str(cluster.port), "-t", "a/b/c", "-m", "x", "-q", "1")
            swarm.poll(lambda: swarm.messages == CLIENTS, PATIENCE_S)
            assert cluster.store.metric(ENTRIES) - entries == OF_THEIR_OWN + 2
            assert cluster.store.metric(MESSAGES) - records == 1
            assert all(client.messages == 1 for client in swarm.clients)
    finally:
        cluster.close()
