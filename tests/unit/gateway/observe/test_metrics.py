"""The metrics: their names, what they count, and that they cost the same however much is connected."""

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway.mqtt.packets import PingReq
from gateway.mqtt.reason_codes import ReasonCode
from gateway.observe.metrics import read_steps
from lightqueue.groups.group_metrics import GROUPS_AT_ONCE
from notify.remote.link_metrics import LINK
from notify.server.wire_metrics import WIRE
from penstock.config.operations_docs import all_figures, renewed
from penstock.servers.prometheus import FigureCollector
from store.figures import joined
from store.state.consumer_work import ConsumerWork
from store.wire.log_messages import HoldLog
from tests.support.mqtt_bench import Bench, SlowDisk, WallClock
from tests.support.server_process import ROOT
from tests.support.stores import commit_log
from tests.unit.conftest import StartBench

OPERATIONS = ROOT / "docs" / "operations.md"


@pytest.fixture
def apart() -> bool:
    """What is said here of the store is known where it is in the same process."""
    return False


def registry_of(bench: Bench) -> CollectorRegistry:
    link = bench.wire.gateway if bench.wire is not None else None
    registry = CollectorRegistry()
    registry.register(FigureCollector(lambda: read_steps(bench.broker, bench.hub, link)))
    return registry


def samples(bench: Bench) -> dict[str, float]:
    """What a scrape gives: `name` or `name{value of its label}`."""
    text = generate_latest(registry_of(bench)).decode()
    found = {}
    for family in parse(text):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return {name.removeprefix("penstock_"): value for name, value in found.items()}


# --- form


def test_names_follow_the_conventions() -> None:
    names = [metric.name for _, metric in all_figures()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("penstock_") for name in names)
    assert {metric.name for _, metric in all_figures() if metric.kind == "counter"} == {
        n for n in names if n.endswith("_total")
    }
    assert all(metric.doc.endswith(".") for _, metric in all_figures())


def test_both_formats_can_be_parsed(bench: Bench) -> None:
    registry = registry_of(bench)
    assert {"penstock_connections", "penstock_build_info"} <= {
        f.name for f in parse(generate_latest(registry).decode())
    }
    families = {family.name for family in parse_openmetrics(generate_openmetrics(registry).decode())}
    assert {"penstock_messages_received", "penstock_build"} <= families


def test_every_metric_has_a_value(bench: Bench) -> None:
    bench.client().send(PingReq())
    bench.durable("c", namespace="acme")
    group = bench.store.groups.make(("g", "a/#"), None, lambda: 0).group
    group.join(("peer", "one"))
    group.consumers["peer", "one"].work = ConsumerWork(lag=0)
    bench.hub.readers.hold(HoldLog("tier"))
    names = {name.split("{")[0] for name in samples(bench)}
    apart = WIRE.keys() | LINK.keys()
    of_process = {
        metric.name + ("_count" if metric.kind == "histogram" else "")
        for section, metric in all_figures()
        if section not in apart
    }
    assert {name.removeprefix("penstock_") for name in of_process} <= names


def test_the_number_of_series_does_not_grow_with_what_is_connected(bench: Bench) -> None:
    before = len(samples(bench))
    for i in range(50):
        client = bench.durable(f"client-{i}")
        client.subscribe(f"topic/{i}", f"+/{i}", qos=1)
        client.publish(f"topic/{i}", b"1", retain=True)
    assert len(samples(bench)) == before


def test_each_group_has_a_label(bench: Bench) -> None:
    """However many were made before it; they are read some at a time."""
    for number in range(200):
        bench.store.groups.make((f"group-{number}", "t/#"), None, lambda: 0)
    bench.connect("publisher").publish("t/1", b"1")
    found = samples(bench)
    assert [found[f"group_lag{{group-{number}:t/#}}"] for number in range(200)] == [1] * 200
    steps = list(read_steps(bench.broker, bench.hub))
    assert len(steps) > 2
    assert all(isinstance(value, dict) and len(value) <= GROUPS_AT_ONCE for step in steps[1:] for _, value in step)


def test_metric_readings_do_not_change_after_they_were_read(bench: Bench) -> None:
    bench.client().send(PingReq())
    before = joined(read_steps(bench.broker, bench.hub))
    again = joined(read_steps(bench.broker, bench.hub))
    bench.client().send(PingReq())
    assert again == before
    assert joined(read_steps(bench.broker, bench.hub)) != before


def test_the_documentation_is_up_to_date() -> None:
    page = OPERATIONS.read_text()
    assert renewed(page) == page, "run `make docs`"
    assert all(metric.name in page for _, metric in all_figures())


def test_tables_are_renewed() -> None:
    page = "before\n<!-- table: metrics -->\nstale text\n<!-- end -->\nafter\n"
    assert "stale text" not in renewed(page)
    assert renewed(page).startswith("before\n")
    assert renewed(page).endswith("<!-- end -->\nafter\n")


# --- values


def test_messages(bench: Bench) -> None:
    reader = bench.connect("reader")
    reader.subscribe("#", qos=2)
    device = bench.connect("device")
    device.publish_whole("a", b"123", 0)
    device.publish_whole("a", b"12345", 1)
    device.publish_whole("$SYS/a", b"1", 0)
    device.publish_whole("a", b"1", 2)
    bench.pass_time(1)
    found = samples(bench)
    for qos in "012":
        assert found[f"messages_received_total{{{qos}}}"] == 1
        assert found[f"messages_sent_total{{{qos}}}"] == 1
    assert found["received_payload_bytes_total"] == found["sent_payload_bytes_total"] == 9
    assert found["messages_refused_total{not_authorized}"] == 1
    assert found["messages_refused_total{not_stored}"] == 0
    assert found["inflight_messages"] == 2
    assert found["stored_messages_total"] == 3
    assert found["queue_entries_total"] == 9  # the topic's queue, its first level's, and the filter's


def test_a_shared_block_counts_for_each_who_gets_it(bench: Bench) -> None:
    for i in range(3):
        bench.connect(f"reader-{i}").subscribe("a")
    device = bench.connect("device")
    before = samples(bench)
    device.send(*[device.publish_packet("a", b"12345") for _ in range(4)])
    found = samples(bench)
    assert found["messages_sent_total{0}"] == 12
    assert found["sent_payload_bytes_total"] == 60
    assert found["packets_sent_total"] - before["packets_sent_total"] == 12
    assert found["packets_received_total"] - before["packets_received_total"] == 4


def test_clients(bench: Bench) -> None:
    bench.durable("away").lose()
    bench.durable("gone", session_expiry_interval=1).lose()
    bench.connect("device")
    bench.connect("device").subscribe("a", "b")
    bench.client()
    bench.client().send(PingReq())
    bench.connect("silent", keep_alive_s=1)
    bench.pass_time(3)
    found = samples(bench)
    assert found["connections"] == 2  # the one that has not said CONNECT yet, and the device's
    assert found["connections_opened_total"] == 7
    assert found["connects_total"] == 5
    assert found["sessions{online}"] == 1
    assert found["sessions{offline}"] == 1
    assert found["sessions_taken_over_total"] == 1
    assert found["sessions_expired_total"] == 1
    assert found["subscriptions"] == 2
    assert found["keep_alive_timeouts_total"] == 1
    assert found["bad_input_total{protocol_error}"] == 1


def test_subscriptions_are_counted_until_they_end(bench: Bench) -> None:
    durable, other = bench.durable("durable"), bench.connect("other")
    for client in (durable, other):
        client.subscribe("a", "b", "c", qos=1)
        client.subscribe("a", qos=0)
    assert samples(bench)["subscriptions"] == 6
    durable.lose()
    other.lose()
    assert samples(bench)["subscriptions"] == 3
    bench.restart()
    assert samples(bench)["subscriptions"] == 3
    bench.durable("durable", clean_start=True)
    assert samples(bench)["subscriptions"] == 0


def test_queues_and_the_log(bench: Bench) -> None:
    bench.durable("durable").subscribe("+/x", qos=1)
    bench.connect("other").subscribe("#")
    bench.connect("third").subscribe("a/x")
    bench.connect("device").publish("a/x", b"1", qos=1)
    bench.connect("device").publish("a/y", b"1", qos=1)
    found = samples(bench)
    kinds = ("topic", "remembered", "level", "filter", "live")
    assert [found[f"queues{{{kind}}}"] for kind in kinds] == [1, 1, 1, 1, 1]
    assert found["log_bytes"] == found["log_end_log_offset"] - found["log_first_log_offset"] > 0
    assert found["log_appends_total"] > 0
    assert found["log_segments"] == 1
    assert found["index_pending_entries"] > 0
    bench.store.tick()
    assert samples(bench)["index_writes_total"] > found["index_writes_total"]


def test_metrics_of_messages_that_wait_for_the_disk(start_bench: StartBench, disk: SlowDisk) -> None:
    bench = start_bench("sync")
    bench.connect("device").publish("a", b"1", qos=1)
    found = samples(bench)
    assert found["waiting_for_safe"] == 1
    assert found["log_safe_log_offset"] < found["log_end_log_offset"]
    disk.finish()
    bench.wait_safe()
    found = samples(bench)
    assert found["waiting_for_safe"] == 0
    assert found["log_syncs_total"] > 0
    assert found["log_safe_log_offset"] == found["log_end_log_offset"]


def test_reads_that_were_shared(bench: Bench) -> None:
    for i in range(10):
        bench.connect(f"reader-{i}").subscribe("a", "b", qos=1)
    bench.connect("device").publish("a", b"1", qos=1)
    found = samples(bench)
    assert found["delivery_reads_total{store}"] <= 2
    assert found["delivery_reads_total{shared}"] >= 9


# --- readiness


def test_ready_is_who_listens_and_does_not_stop(bench: Bench) -> None:
    assert bench.broker.unready() == "not listening yet"
    bench.broker.listening()
    assert bench.broker.unready() == ""
    bench.broker.drain(ReasonCode.SERVER_SHUTTING_DOWN)
    assert bench.broker.unready() == "stopping"


def test_a_full_disk_is_not_ready(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.broker.listening()
    bench.connect("device").publish("a", b"x" * 1_000)
    real = os.statvfs

    def full(path: str | Path) -> os.statvfs_result:
        return os.statvfs_result([0 if i in (3, 4) else value for i, value in enumerate(real(path))])

    monkeypatch.setattr("store.log.disk_room.os.statvfs", full)
    commit_log(bench.store).segments[-1].allocated_bytes = bench.store.end - commit_log(bench.store).segments[-1].base
    assert "no space left" in bench.broker.unready()
    monkeypatch.undo()
    assert bench.broker.unready() == ""


def test_a_failed_disk_is_not_ready(bench: Bench) -> None:
    bench.broker.listening()
    commit_log(bench.store).flusher.error = OSError(5, "Input/output error")
    assert "Input/output error" in bench.broker.unready()
    commit_log(bench.store).flusher.error = None


# --- over the wire


def test_the_link_to_the_store(tmp_path: Path, clock: WallClock) -> None:
    bench = Bench(tmp_path / "data", clock, apart=True)
    for i in range(5):
        bench.connect(f"reader-{i}").subscribe("a", "b", qos=1)
    device = bench.connect("device")
    device.publish("a", b"1", qos=1)
    found = samples(bench)
    assert (found["link_connected"], found["link_connects_total"], found["link_unstored_bytes"]) == (1, 1, 0)
    assert found["range_cache_misses_total"] >= 1
    assert found["range_cache_hits_total"] >= 1
    assert found["range_cache_bytes"] > 0
    assert bench.wire is not None
    bench.wire.gateway.lost()
    device.publish("a", b"2", qos=1)
    found = samples(bench)
    assert (found["link_connected"], found["link_connects_total"]) == (0, 1)
    assert found["link_unstored_bytes"] > 0
    bench.close()


# --- what operators look at


def test_from_publish_to_acknowledgement(bench: Bench) -> None:
    client = bench.connect("publisher")
    for _ in range(3):
        client.publish("t", b"1", qos=1)
    client.publish("t", b"1", qos=2)
    bench.wait_safe()
    client.received()
    found = samples(bench)
    assert found["publish_acknowledged_seconds_count"] == 4
    assert 0 < found["publish_acknowledged_seconds_sum"] < 60
    assert found["publish_acknowledged_seconds_bucket{+Inf}"] == 4
    client.publish("t", b"1", qos=0)
    assert samples(bench)["publish_acknowledged_seconds_count"] == 4


def test_each_sync_is_in_the_histogram(start_bench: StartBench) -> None:
    bench = start_bench("sync")
    client = bench.connect("publisher")
    client.publish("t", b"1", qos=1)
    bench.wait_safe()
    client.received()
    found = samples(bench)
    assert found["log_sync_duration_seconds_count"] == found["log_syncs_total"] > 0
    assert found["log_sync_duration_seconds_sum"] == found["log_sync_seconds_total"]


def test_room_on_the_disk(bench: Bench) -> None:
    disk = os.statvfs(commit_log(bench.store).folder)
    found = samples(bench)["disk_free_bytes"]
    assert 0 < found <= disk.f_blocks * disk.f_frsize


def test_metrics_of_connections_that_were_turned_away_by_reason(start_bench: StartBench) -> None:
    bench = start_bench(max_connections=2)
    strangers = [bench.client() for _ in range(3)]
    strangers[0].send(PingReq())
    found = samples(bench)
    assert found["connections_turned_away_total{max_connections}"] == 1
    assert found["connections_turned_away_total{protocol_error}"] == 1
    assert "connections_turned_away_total{banned}" in found
