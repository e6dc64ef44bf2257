"""`penstock store inspect`: what it prints and what its exit code says."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import app_for

REPORT: dict[str, Any] = {
    "first_log_offset": 0,
    "end_log_offset": 512,
    "segments": [
        {
            "name": "00000000000000000000",
            "base_log_offset": 0,
            "bytes": 512,
            "records": 3,
            "corruption": None,
        }
    ],
    "records": {"message": 2, "session": 1},
    "queues": [{"name": "plant/[red]", "kind": "topic", "first_queue_offset": 0, "next_queue_offset": 2}],
    "sessions": [{"client_id": "pump-1", "acked_log_offset": 256, "subscriptions": ["plant/+", "x/#"]}],
    "readers": [],
    "groups": [{"name": "billing", "topic_filter": "plant/#", "queue_offset": 1, "held": 0, "dead_letters": 0}],
    "delayed_pending": 7,
    "applied_offset": 512,
    "corruption": [],
}


@pytest.fixture
def inspect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def run(report: dict[str, Any], *arguments: str) -> Result:
        fake = SimpleNamespace(inspect_folder=lambda folder: report)
        monkeypatch.setitem(sys.modules, "lightqueue.mending.inspect", fake)
        return CliRunner().invoke(app_for(["store"]), ["store", "inspect", str(tmp_path), *arguments])

    return run


def test_json_is_the_report(inspect: Any) -> None:
    result = inspect(REPORT, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == REPORT


def test_tables_show_every_value(inspect: Any) -> None:
    result = inspect(REPORT)
    assert result.exit_code == 0
    for shown in ("00000000000000000000", "message", "plant/[red]", "pump-1", "plant/+, x/#", "billing", "pending: 7"):
        assert shown in result.stdout


def test_an_empty_folder_has_no_rows(inspect: Any) -> None:
    empty = REPORT | {"segments": [], "records": {}, "queues": [], "sessions": [], "groups": []}
    assert "sessions (0)" in inspect(empty).stdout


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_damage_is_shown_and_exits_1(inspect: Any, arguments: tuple[str, ...]) -> None:
    result = inspect(REPORT | {"corruption": ["bad CRC at log_offset 128"]}, *arguments)
    assert result.exit_code == 1
    assert "bad CRC at log_offset 128" in result.stdout
