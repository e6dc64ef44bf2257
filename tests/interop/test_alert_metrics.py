"""Each metric that the dashboard and the alerts ask for is one that a running server has."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.conftest import ServerFactory
from tests.helm.seen_from_outside import ALERTS, DASHBOARD, expressions, metrics_in
from tests.interop.test_admin import admin_url, get

LINKED = {"penstock_link_connected", "penstock_link_unstored_bytes", "penstock_range_cache_bytes"}
"""Of a gateway whose store is another process."""
WIRE = {"penstock_wire_request_seconds", "penstock_reader_lag_bytes"}
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
