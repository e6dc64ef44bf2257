"""`penstock.spark.table` of a running store, which says where the table of its tier is, or that it has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock.spark
from penstock.spark.errors import TierUnreadable
from tests.support.store_process import StoreProcess
from tests.tier.places import TablePlace
from tests.tier.test_cold_reads import Sent
from tests.tier.tier_process import SMALL, Tier, oldest, wait_until


def rows(frame: DataFrame) -> list[tuple[str, bytes]]:
    found = sorted(frame.select("log_offset", "topic", "payload").collect())
    return [(row["topic"], bytes(row["payload"])) for row in found]


def test_the_store_says_where_the_table_is(spark: SparkSession, tmp_path: Path) -> None:
    """Without a tier it is the log alone; while the tier is away there is a line that says what to do."""
    store = StoreProcess(tmp_path, settings=SMALL)
    url = store.url.replace("tcp:", "penstock:")
    tier: Tier | None = None
    try:
        sent = Sent(store, 3)
        sent.more(20)
        in_log = penstock.spark.table(spark, url)
        assert rows(in_log) == [(topic, payload) for topic, payload, _ in sent.messages]
        assert in_log.columns[:4] == ["day", "namespace", "topic", "log_offset"]
        tier = Tier(tmp_path / "tier.log", store, TablePlace(str(tmp_path / "fleet"), {}), serves=True)
        wait_until(lambda: tier.has(20))
        while oldest(store) < 600_000:
            sent.more(50)
        assert rows(penstock.spark.table(spark, url)) == [(topic, payload) for topic, payload, _ in sent.messages]
        tier.kill()
        with pytest.raises(TierUnreadable, match=r"no `penstock tier` is connected .* \(say it with the option tier\)"):
            penstock.spark.table(spark, url, storeTimeout="0")
        by_hand = penstock.spark.table(spark, url, tier=tier.place.url)
        assert rows(by_hand) == [(topic, payload) for topic, payload, _ in sent.messages]
    finally:
        if tier is not None:
            tier.kill()
        store.close()


def test_a_data_folder_does_not_say_where_its_tier_is(spark: SparkSession, tmp_path: Path) -> None:
    """So it is the log alone."""
    store = StoreProcess(tmp_path, settings=SMALL)
    try:
        sent = Sent(store, 4)
        sent.more(20)
        frame = penstock.spark.table(spark, str(store.data), columns="log_offset,topic,payload")
        assert rows(frame) == [(topic, payload) for topic, payload, _ in sent.messages]
    finally:
        store.close()
