"""The alert rules and the dashboard: Prometheus understands them, they fire when they must, and the chart has them."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config.operations_docs import all_figures
from tests.helm.chart import CHART, HERE, ROOT, Rendered
from tests.helm.seen_from_outside import ALERTS, DASHBOARD, expressions, metrics_in

RULES = CHART / "alerts" / "penstock.yaml"
CASES = HERE / "alerts-cases.yaml"
OF_ALL_TARGETS = {"up", "ALERTS"}
"""Metrics that Prometheus itself makes."""


def promtool(*arguments: str | Path) -> None:
    found = shutil.which("promtool")
    if found is None:
        pytest.fail("promtool is missing; apt-get install prometheus", pytrace=False)
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_rules() -> None:
    promtool("check", "rules", RULES)


def test_alerts_fire_when_they_must_and_not_otherwise() -> None:
    promtool("test", "rules", CASES)


def test_the_rule_of_a_forecast() -> None:
    promtool("test", "rules", HERE / "forecast-cases.yaml")


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert {name for name in ALERTS if f'alertname="{name}"' not in CASES.read_text()} == set()


def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """As rules, since `promtool` has no other check of a query that asks no server."""
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$__rate_interval", "1m", text).replace("$instance", ".*")}
        for number, text in enumerate(expressions(DASHBOARD))
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)


def test_every_metric_of_alerts_and_dashboard_is_one_that_a_process_has() -> None:
    known = {figure.name for _, figure in all_figures()}
    known |= {f"{figure.name}_{part}" for _, figure in all_figures() for part in ("bucket", "sum", "count")}
    own = re.compile(r"process_\w+|penstock_build_info|penstock_process_up")
    used = {name for text in (*ALERTS.values(), *expressions(DASHBOARD)) for name in metrics_in(text)}
    assert {name for name in used - OF_ALL_TARGETS - known if not own.fullmatch(name)} == set()


@pytest.mark.parametrize(
    "rule", [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
)
def test_every_alert_names_its_remedy_and_its_section(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    assert all(annotations[name] for name in ("summary", "description", "remedy"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    page, _, anchor = annotations["runbook"].partition("#")
    headings = re.findall(r"^### (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert rule["alert"] in headings
    assert anchor == rule["alert"].lower()


def test_the_page_explains_no_alert_that_is_gone() -> None:
    headings = re.findall(r"^### (Penstock\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(ALERTS)


def test_the_chart_has_the_dashboard_for_grafanas_sidecar(everything: Rendered, minimal: Rendered) -> None:
    (found,) = [thing for thing in everything.of_kind("ConfigMap") if "penstock.json" in thing["data"]]
    assert json.loads(found["data"]["penstock.json"]) == DASHBOARD
    assert found["metadata"]["labels"]["grafana_dashboard"] == "yes"
    assert found["metadata"]["annotations"] == {"grafana_folder": "Messaging"}
    assert not minimal.of_kind("ConfigMap")


def test_the_chart_has_the_rules_in_both_forms(everything: Rendered, minimal: Rendered) -> None:
    rules = yaml.safe_load(RULES.read_text())
    rule = everything.one("PrometheusRule")
    assert rule["spec"] == rules
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    (found,) = [thing for thing in everything.of_kind("ConfigMap") if "penstock.yaml" in thing["data"]]
    assert yaml.safe_load(found["data"]["penstock.yaml"]) == rules
    assert found["metadata"]["labels"]["example.com/rules"] == "yes"
    assert not minimal.of_kind("PrometheusRule")


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
