"""The alert rules and the dashboard, and the metrics that they ask for."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.helm.chart import CHART

ALERTS: dict[str, str] = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load((CHART / "alerts" / "penstock.yaml").read_text())["groups"]
    for rule in group["rules"]
}
"""The expression of each alert, by its name."""
DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards" / "penstock.json").read_text())


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    """All queries of a dashboard's panels."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))


def metrics_in(expression: str) -> set[str]:
    """Names of metrics in an expression; labels and functions have other names."""
    without_labels = re.sub(r"\{[^}]*\}", "", expression)
    return set(re.findall(r"\b(?:penstock|process)_\w+|\bup\b|\bALERTS\b", without_labels))
