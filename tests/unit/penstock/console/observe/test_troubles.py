"""What the overview calls wrong, and what it says to do."""

from __future__ import annotations

import json

import pytest

from penstock.console.observe.figures import Figures
from penstock.console.observe.look import DISK_FREE, SERVER, ProcessLook, ServerLook
from penstock.console.observe.troubles import Trouble, troubles
from store.wire.operator_messages import Sample, ServerShown

SEGMENT_BYTES = 1 << 30


def found(*samples: tuple[str, dict[str, str], float], unready: str = "", health: str = "") -> list[Trouble]:
    settings = json.dumps({"store.segment_bytes": SEGMENT_BYTES})
    figures: list[Sample] = list(samples)
    server = ServerShown("1", 0, settings, health, unready, [], None)
    return troubles(ServerLook(0.0, server, {SERVER: ProcessLook(Figures(figures))}))


def test_troubles_are_empty_for_healthy_figures() -> None:
    assert not found((DISK_FREE, {}, 3.0 * SEGMENT_BYTES), ("penstock_link_connected", {}, 1.0))
    assert not found()


@pytest.mark.parametrize(
    ("sample", "what", "remedy"),
    [
        ((DISK_FREE, {}, 1.5 * SEGMENT_BYTES), "1.6 GB left", "retention_bytes"),
        (("penstock_link_connected", {}, 0.0), "not connected", "the store runs"),
        (("penstock_scrub_damaged_bytes", {}, 4_096.0), "4,096 bytes", "penstock store repair"),
    ],
)
def test_trouble_has_a_remedy(sample: tuple[str, dict[str, str], float], what: str, remedy: str) -> None:
    (trouble,) = found(sample)
    assert what in trouble.what
    assert remedy in trouble.remedy


def test_a_group_is_stuck_that_has_a_lag_and_no_consumer() -> None:
    lag, nobody = ("penstock_group_lag", {"group": "g"}, 7.0), ("penstock_group_consumers", {"group": "g"}, 0.0)
    (trouble,) = found(lag, nobody)
    assert trouble.what == "group g has a lag of 7 messages and no consumer"
    assert not found(lag, ("penstock_group_consumers", {"group": "g"}, 1.0))


def test_troubles_of_the_server_itself_come_first() -> None:
    assert [each.what for each in found(unready="starting", health="2 gaps")] == ["starting", "2 gaps"]
