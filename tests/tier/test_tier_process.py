"""`penstock tier` beside a store: what was acknowledged is in the table or in the log, once, through kills of both."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from notify.links.address import StoreAddress
from notify.local.tier import TIER_READER
from penstock.errors import PenstockError
from penstock.store_client import StoreClient
from penstock.tier.store_log import HeldLog, StoreLog
from store.mending.backup import backup
from store.mending.restore import restore
from store.wire.log_messages import HoldLog, LocateTable, LogHeld, Segments, SegmentsFound, TableLocated
from store.wire.messages import Role
from tests.support.store_process import StoreProcess
from tests.tier.places import TablePlace
from tests.tier.tally import in_table_and_log
from tests.tier.tier_process import SMALL, Tier, oldest, publish, wait_until

KILLS = 6


@pytest.fixture
def tier(tmp_path: Path, store: StoreProcess, place: TablePlace) -> Iterator[Tier]:
    tier = Tier(tmp_path / "tier.log", store, place)
    yield tier
    tier.kill()


@pytest.mark.s3_by_day
def test_each_acknowledged_message_is_in_the_table_once(store: StoreProcess, tier: Tier, seed: int) -> None:
    rng = random.Random(seed)
    sent = 0
    for _ in range(KILLS):
        sent = publish(store, sent, rng.randrange(20, 120), rng)
        if rng.random() < 0.5:  # so that the kill comes at one moment or another of a commit
            wait_until(partial(tier.has, sent - rng.randrange(20)))
        part = rng.choice((store, tier))
        part.kill()
        if part is tier:
            assert_is_there(sent, store, tier)
        part.start()
    wait_until(lambda: tier.has(sent))
    rows = tier.rows()
    assert [int(row["payload"][:6]) for row in rows] == list(range(sent))  # type: ignore[index]
    for topic in range(3):
        places = [row["queue_offset"] for row in rows if row["topic"] == f"line/{topic}"]
        assert places == list(range(len(places)))


def assert_is_there(sent: int, store: StoreProcess, tier: Tier) -> None:
    """In the table or in the log behind it, once each; nobody writes to the table."""
    with closing(StoreLog(StoreAddress.parse(store.url), "", None, Role.CLIENT, HeldLog(TIER_READER))) as log:
        end = end_of(store)
        wait_until(lambda: log.hold().on_disk >= end)
        assert sorted(int(each[:6]) for each in in_table_and_log(tier.place, log)) == list(range(sent))


@pytest.mark.s3_by_day
def test_retention_waits_for_the_table_and_goes_on_behind_it(
    tmp_path: Path, store: StoreProcess, place: TablePlace, seed: int
) -> None:
    """A tier that is away holds the log; one that has caught up lets retention have it, and keeps what it drops."""
    rng = random.Random(seed)
    tier = Tier(tmp_path / "tier.log", store, place)
    sent = publish(store, 0, 10, rng)
    wait_until(lambda: tier.has(sent))
    tier.kill()
    sent = publish(store, sent, 400, rng)
    assert oldest(store) == 0
    tier.start()
    wait_until(lambda: oldest(store) > 0)
    wait_until(lambda: tier.has(sent))
    assert [int(row["payload"][:6]) for row in tier.rows()] == list(range(sent))  # type: ignore[index]
    tier.kill()


@pytest.mark.parametrize(
    "case", ["table has more", pytest.param("table has less", marks=pytest.mark.nightly), "cut in the middle"]
)
def test_a_restored_store_goes_on_in_the_table(
    tmp_path: Path, store: StoreProcess, place: TablePlace, seed: int, case: str
) -> None:
    """An older backup comes back under the table: no message goes, none is there twice, and new ones follow."""
    rng = random.Random(seed)
    tier = Tier(tmp_path / "tier.log", store, place)
    sent = publish(store, 0, 40, rng)
    wait_until(lambda: tier.has(sent))
    middle = int(tier.rows()[20]["log_offset"])  # type: ignore[call-overload]
    if case == "table has less":
        tier.kill()
    sent = publish(store, sent, 40, rng)
    wait_until(lambda: backup(store.data, tmp_path / "backup").manifest.end >= end_of(store))
    if case == "table has more":
        sent = publish(store, sent, 40, rng)
    if case != "table has less":
        wait_until(lambda: tier.has(sent))
        tier.kill()
    store.close()
    rounds = 2 if case == "table has more" else 1  # a backup of the restored one is restored in turn
    for number in range(rounds):
        folder = tmp_path / f"restored-{number}"
        restore(tmp_path / "backup", folder / "data", middle if case == "cut in the middle" and not number else None)
        restored = StoreProcess(folder, settings=SMALL)
        tier = Tier(folder / "tier.log", restored, place)
        sent = publish(restored, sent, 30, rng)
        wait_until(lambda tier=tier, sent=sent: tier.has(sent))  # type: ignore[misc]
        rows = tier.rows()
        assert [int(row["payload"][:6]) for row in rows] == list(range(sent))  # type: ignore[index]
        for topic in range(3):
            places = [row["queue_offset"] for row in rows if row["topic"] == f"line/{topic}"]
            assert places == list(range(len(places)))
        tier.kill()
        if number + 1 < rounds:
            shutil.rmtree(tmp_path / "backup")
            backup(restored.data, tmp_path / "backup")
        restored.close()


def test_the_readers_own_records_make_no_commits(store: StoreProcess, tier: Tier, seed: int) -> None:
    """An idle store's table stays as it is, however often the tier says where it is."""
    rng = random.Random(seed)
    sent = publish(store, 0, 5, rng)
    wait_until(lambda: tier.has(sent))

    def version() -> int:
        return DeltaTable(tier.place.url, storage_options=tier.place.options).version()

    before = version()
    for number in range(3):
        tier.kill()
        with StoreClient(StoreAddress.parse(store.url), "", None) as client:
            client.call(HoldLog("another", 64 * number), LogHeld)
        tier.start()
    sent = publish(store, sent, 1, rng)
    wait_until(lambda: tier.has(sent))
    assert version() == before + 1


@pytest.mark.parametrize("place", ["folder"], indirect=True)
@pytest.mark.parametrize("case", ["another store", "an older copy"])
def test_a_table_that_the_log_may_not_write_is_not_served(
    tmp_path: Path, store: StoreProcess, place: TablePlace, seed: int, case: str
) -> None:
    """Its messages are those of another log, or of a part that this one has lost."""
    rng = random.Random(seed)
    folder = tmp_path / "other"
    tier = Tier(tmp_path / "tier.log", store, place, serves=True)
    sent = publish(store, 0, 10, rng)
    if case == "an older copy":
        store.kill()
        shutil.copytree(store.data, folder / "data", ignore=shutil.ignore_patterns("*.sock"))
        store.start()
        sent = publish(store, sent, 10, rng)
    wait_until(lambda: tier.has(sent))
    tier.kill()
    folder.mkdir(exist_ok=True)
    other = StoreProcess(folder, settings=SMALL)
    its = Tier(folder / "tier.log", other, place, serves=True, log_level="debug")
    why = "the table is of the log" if case == "another store" else "the table goes up to log_offset"
    try:
        wait_until(lambda: f"does not serve reads of history: {place.url}: {why}" in its.log_text())
        wait_until(lambda: "the log keeps what the table does not have" in its.log_text())
        with (
            StoreClient(StoreAddress.parse(other.url), "", None) as client,
            pytest.raises(PenstockError, match="no `penstock tier` is connected"),
        ):
            client.call(LocateTable(), TableLocated)
    finally:
        its.kill()
        other.close()


def test_a_reader_that_waits_for_its_storage_stays_known_to_the_store(tmp_path: Path) -> None:
    with closing(StoreProcess(tmp_path, settings={"wire.lease_ms": 600, "wire.heartbeat_ms": 100})) as store:
        address = StoreAddress.parse(store.url)
        with (
            closing(StoreLog(address, "", None, Role.CLIENT, HeldLog("tier"))) as log,
            StoreClient(address, "", None),  # for a few requests: it says nothing between them
        ):
            wait_until(lambda: "was not heard of" in store.log_text())
            assert log.hold().log_offset == 0


def test_small_files_are_merged_once_it_has_caught_up(
    tmp_path: Path, store: StoreProcess, place: TablePlace, seed: int
) -> None:
    """And what is published then is in the table as before."""
    rng = random.Random(seed)
    with StoreClient(StoreAddress.parse(store.url), "", None) as client:
        client.call(HoldLog("tier", 0), LogHeld)
    sent = publish(store, 0, 20 * (1 << 20) // 3_000, rng)
    settings: dict[str, Any] = {"tier.commit_bytes": 1 << 20}
    tier = Tier(tmp_path / "tier.log", store, place, **settings)
    wait_until(lambda: tier.has(sent))

    def files() -> int:
        table = DeltaTable(place.url, storage_options=place.options)
        return len(pa.table(table.get_add_actions())["path"])

    wait_until(lambda: files() < 4)
    sent = publish(store, sent, 20, rng)
    wait_until(lambda: tier.has(sent))
    assert [int(row["payload"][:6]) for row in tier.rows()] == list(range(sent))  # type: ignore[index]
    tier.kill()


def test_tier_process_reports_missing_settings(tmp_path: Path) -> None:
    """Each in one line, which names the thing and the remedy."""
    for arguments, text in (
        ((), "set tier.url"),
        (("--url", str(tmp_path / "t")), "give its address with --store"),
        (("--url", "ftp://somewhere", "--store", "tcp://127.0.0.1:1"), "tier.url wants a folder"),
    ):
        command = [sys.executable, "-m", "penstock", "tier", *arguments]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert found.returncode != 0
        assert text in found.stderr
        assert found.stderr.count("\n") == 1


def end_of(store: StoreProcess) -> int:
    with StoreClient(StoreAddress.parse(store.url), "", None) as client:
        return client.call(Segments(0), SegmentsFound).log_end
