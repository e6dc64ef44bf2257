"""inspect_folder and `penstock store inspect` on real folders: stopped, killed, in use, and damaged."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightqueue.mending.inspect import inspect_folder
from lightqueue.message_store import MessageStore
from store.errors import FolderUnusable
from store.files.marks import MARKS
from store.files.segment import segment_paths
from tests.support.server_process import ROOT
from tests.support.store_workload import Workload, state_of
from tests.support.stores import commit_log, crash_copy, flip, publish, publish_delayed, small, subscribe


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """An open store with a session, some messages and several segments."""
    store = MessageStore(small(tmp_path / "data"))
    publish(store, "plant/1", b"on", b"off")
    subscribe(store, "pump", ["plant/+/x", "plant/#"])
    for i in range(70):
        publish(store, "plant/2/x", bytes((i,)) * 2000)
    yield store
    if commit_log(store).segments:
        stop(store)


def stop(store: MessageStore) -> None:
    store.close()
    commit_log(store).segments.clear()


def data_of(store: MessageStore) -> Path:
    return store.settings.data


def listing(folder: Path) -> list[tuple[str, int, int]]:
    """Every file but the marks, which a store that runs writes after each sync."""
    return sorted(
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.name != MARKS
    )


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "penstock", "store", "inspect", str(folder), *arguments]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)


def check(report: dict[str, Any], end: int) -> None:
    assert (report["first_log_offset"], report["end_log_offset"], report["corruption"]) == (64, end, [])
    assert report["records"] == {"message": 72, "session_opened": 1, "subscribed": 1}
    assert [segment["base_log_offset"] for segment in report["segments"]] == [0, 64048, 127848]
    assert sum(segment["bytes"] for segment in report["segments"]) == end
    assert sum(segment["records"] for segment in report["segments"]) == 74
    assert report["queues"] == [
        {"name": "plant/1", "kind": "topic", "first_queue_offset": 0, "next_queue_offset": 2},
        {"name": "plant/2/x", "kind": "topic", "first_queue_offset": 0, "next_queue_offset": 70},
        {"name": "plant", "kind": "level", "first_queue_offset": 0, "next_queue_offset": 72},
        {"name": "plant/+/x", "kind": "filter", "first_queue_offset": 0, "next_queue_offset": 70},
    ]
    assert report["sessions"] == [
        {"client_id": "pump", "acked_log_offset": 176, "subscriptions": ["plant/#", "plant/+/x"], "gap": 0}
    ]


def test_a_stopped_folder(store: MessageStore) -> None:
    end = store.end
    stop(store)
    report = inspect_folder(data_of(store))
    check(report, end)
    assert (report["applied_offset"], report["torn_tail_bytes"]) == (end, 0)


def test_a_folder_in_use_is_seen_up_to_now_and_left_alone(store: MessageStore) -> None:
    store.write_index()
    store.index.flush()
    applied = store.end
    publish(store, "plant/9", b"new")
    before = listing(data_of(store))
    report = inspect_folder(data_of(store))
    assert report["records"]["message"] == 73
    assert {"name": "plant/9", "kind": "topic", "first_queue_offset": 0, "next_queue_offset": 1} in report["queues"]
    assert (report["applied_offset"], report["end_log_offset"]) == (applied, store.end)
    assert listing(data_of(store)) == before


def test_pending_delayed_messages_are_counted(store: MessageStore) -> None:
    assert "delayed" not in command(data_of(store)).stdout
    publish_delayed(store, "plant/1", b"later", b"too", due_ms=1 << 60)
    assert inspect_folder(data_of(store))["delayed_pending"] == 2
    assert "delayed messages pending: 2" in command(data_of(store)).stdout


def test_a_killed_folder_is_shown_as_a_restart_would_find_it(store: MessageStore, tmp_path: Path) -> None:
    killed = crash_copy(data_of(store), tmp_path / "killed")
    report = inspect_folder(killed)
    check(report, store.end)
    assert report["applied_offset"] == 0


def test_any_folder_says_what_its_store_says(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path))
    Workload(7).run(store, 200)
    report = inspect_folder(tmp_path)
    state = state_of(store)
    store.close()
    ends = {f"{queue['kind']} {queue['name']}": queue["next_queue_offset"] for queue in report["queues"]}
    kinds = {"0": "topic", "1": "level", "2": "filter"}
    assert ends == {f"{kinds[chr(key[1])]} {key[2:].decode()}": queue[0] for key, queue in state["queues"].items()}
    assert [session["client_id"] for session in report["sessions"]] == sorted(state["sessions"])
    for session in report["sessions"]:
        assert session["acked_log_offset"] == state["sessions"][session["client_id"]].acked


def test_a_torn_tail_is_not_corruption(store: MessageStore) -> None:
    end = store.end
    stop(store)
    path = segment_paths(data_of(store) / "log")[-1]
    with path.open("r+b") as file:
        file.seek(end - int(path.stem))
        file.write(b"half a record")
    report = inspect_folder(data_of(store))
    check(report, end)
    assert report["torn_tail_bytes"] == len(b"half a record")
    shown = command(data_of(store))
    assert (shown.returncode, "torn tail: 13 bytes" in shown.stdout) == (0, True)


@pytest.mark.parametrize(
    ("segment", "position", "reason"),
    [(0, 3, "wrong magic"), (1, 64 + 5, "checksum mismatch"), (0, 30_000, "checksum mismatch")],
)
def test_damage_is_named_and_the_rest_still_shown(
    store: MessageStore, segment: int, position: int, reason: str
) -> None:
    stop(store)
    path = segment_paths(data_of(store) / "log")[segment]
    flip(path, position)
    report = inspect_folder(data_of(store))
    (found,) = report["corruption"]
    assert str(path) in found
    assert reason in found
    assert [bool(row["corruption"]) for row in report["segments"]] == [i == segment for i in range(3)]
    assert report["segments"][2]["records"] > 0
    assert len(report["queues"]) == 4


def test_a_missing_segment_is_corruption(store: MessageStore) -> None:
    stop(store)
    segment_paths(data_of(store) / "log")[1].unlink()
    (found,) = inspect_folder(data_of(store))["corruption"]
    assert "the log goes on at 127848" in found


def test_a_stillborn_file_is_ignored(store: MessageStore) -> None:
    end = store.end
    stop(store)
    (data_of(store) / "log" / f"{end:020}.log").write_bytes(bytes(100))
    check(inspect_folder(data_of(store)), end)


def test_a_record_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path, segment_bytes=32 << 20))
    publish(store, "small", b"x")
    publish(store, "large", bytes(10 << 20))
    publish(store, "small", b"x")
    store.close()
    report = inspect_folder(tmp_path)
    assert (report["records"], report["corruption"]) == ({"message": 3}, [])


def test_an_empty_store(tmp_path: Path) -> None:
    MessageStore(small(tmp_path)).close()
    report = inspect_folder(tmp_path)
    assert (report["first_log_offset"], report["end_log_offset"], report["records"]) == (64, 64, {})


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(FolderUnusable, match=str(tmp_path)):
        inspect_folder(tmp_path)


def test_the_command_prints_the_report_as_json(store: MessageStore) -> None:
    end = store.end
    stop(store)
    shown = command(data_of(store), "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    check(json.loads(shown.stdout), end)


def test_the_command_exits_1_over_damage(store: MessageStore) -> None:
    stop(store)
    path = segment_paths(data_of(store) / "log")[0]
    flip(path, 5000)
    shown = command(data_of(store), "--json")
    assert shown.returncode == 1
    (found,) = json.loads(shown.stdout)["corruption"]
    assert os.fspath(path) in found
