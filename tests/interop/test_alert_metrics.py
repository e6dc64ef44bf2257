"""Each metric that the dashboard and the alerts ask for is one that a running server has."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from notify.links.address import StoreAddress
from penstock.servers.process import OPERATOR_SOCKET
from penstock.store_client import StoreClient
from store.wire.log_messages import HoldLog, LogHeld
from store.wire.messages import Role
from tests.conftest import ONE_PROCESS, ServerFactory
from tests.helm.seen_from_outside import ALERTS, DASHBOARD, expressions, metrics_in
from tests.interop.test_admin import admin_url, get

LINKED = {"penstock_link_connected", "penstock_link_unstored_bytes", "penstock_range_cache_bytes"}
"""Of a gateway whose store is another process."""
WIRE = {"penstock_wire_request_seconds"}
"""Of a store that is a process of its own."""
SUPERVISED = {"penstock_process_up"}
OF_PROMETHEUS = {"up", "ALERTS"}


def families(url: str) -> set[str]:
    """Names of all metrics, with those of their samples."""
    status, _, text = get(url + "/metrics")
    assert status == 200
    names = set()
    for family in parse(text):
        base = f"{family.name}_total" if family.type == "counter" else family.name
        names |= {base, *(sample.name for sample in family.samples)}
        names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count") if family.type == "histogram"}
    return names


def used() -> set[str]:
    return {name for text in (*ALERTS.values(), *expressions(DASHBOARD)) for name in metrics_in(text)} - OF_PROMETHEUS


def without_part(names: set[str]) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


@pytest.mark.topologies("one process", "shared port")
def test_every_metric_that_is_asked_for_is_there(penstock_server: ServerFactory, topology: str) -> None:
    server = penstock_server(admin="127.0.0.1:0")
    missing = used() - families(admin_url(server))
    expected = LINKED | WIRE | SUPERVISED if topology == "one process" else set()
    assert without_part(missing) == expected


@ONE_PROCESS
def test_how_far_a_reader_of_the_log_is_behind(penstock_server: ServerFactory) -> None:
    server = penstock_server(admin="127.0.0.1:0")
    address = StoreAddress.parse(f"unix://{server.data / OPERATOR_SOCKET}")
    with StoreClient(address, "", None, Role.OPERATOR) as store:
        held = store.call(HoldLog("export"), LogHeld)
    _, _, text = get(admin_url(server) + "/metrics")
    (lag,) = (family for family in parse(text) if family.name == "penstock_reader_lag_bytes")
    (sample,) = lag.samples
    assert sample.labels == {"reader": "export"}
    assert sample.value > 0
    assert held.log_offset == 0
