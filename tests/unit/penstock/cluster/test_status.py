"""What `penstock cluster status` says of stores, by what they told Kafka."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.cluster.progress import StoreProgress, StoreReport
from penstock.cluster.status import _faults, _row

NOW_S = 1_000.0
LEADER = StoreReport("tcp://10.0.0.1:7700", True, 2, 900, NOW_S - 2)
STANDBY = StoreReport("tcp://10.0.0.2:7700", False, 2, 900, NOW_S - 3)
COPIES = StoreReport("tcp://10.0.0.2:7700", False, 0, 0, NOW_S - 1, True, "tcp://10.0.0.1:7700", 300, 900)


def faults(*stores: StoreProgress, silent_s: float = 0.1) -> list[str]:
    rows = [_row(each, 101, NOW_S) for each in stores]
    return _faults({"silent_s": silent_s, "stores": rows}, 3)


def row(report: StoreReport | None, offset: int = 99) -> dict[str, Any]:
    return _row(StoreProgress("store-2", offset, report), 101, NOW_S)


def test_the_role_of_a_store() -> None:
    assert row(None, -1)["role"] == ""
    assert row(LEADER)["role"] == "leader"
    found = row(STANDBY)
    assert (found["role"], found["frames_behind"], found["said_s_ago"], found["copying"]) == ("standby", 1, 3, None)


def test_a_store_that_copies() -> None:
    found = row(COPIES, 0)
    assert (found["role"], found["frames_behind"]) == ("copies", None)
    assert found["copying"] == {"from": "tcp://10.0.0.1:7700", "done_bytes": 300, "of_bytes": 900}
    assert faults(StoreProgress("store-1", 100, LEADER), StoreProgress("store-2", 0, COPIES)) == []


@pytest.mark.parametrize(
    ("offset", "said_s", "said"),
    [
        (99, NOW_S, ""),
        (-1, NOW_S, "store-2 has said nothing; start it, or take it out of cluster.stores"),
        (99, NOW_S - 40, "store-2 has said nothing for 40 s; see whether it runs"),
        (99, 0, ""),  # an older version does not say when
    ],
)
def test_a_store_that_is_away(offset: int, said_s: float, said: str) -> None:
    second = StoreProgress("store-2", offset, msgspec.structs.replace(STANDBY, said_s=said_s))
    assert faults(StoreProgress("store-1", 100, LEADER), second) == ([said] if said else [])


def test_a_store_that_has_nothing_to_copy() -> None:
    second = StoreProgress("store-2", 0, msgspec.structs.replace(COPIES, copies_from=""))
    (said,) = faults(StoreProgress("store-1", 100, LEADER), second)
    assert "wire.operator_token" in said
    (said,) = faults(StoreProgress("store-1", 100, STANDBY), second)
    assert "start a store that has the log" in said
