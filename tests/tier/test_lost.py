"""Readers of the tier are told of what is lost: by the first message behind it, as readers of the log are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.mqtt.packets import PubAck, Publish
from gateway.mqtt.reason_codes import ReasonCode
from penstock.tier.commits import commit_path
from penstock.tier.history import TableHistory
from penstock.tier.listing import newest_listing
from penstock.tier.objects import ObjectFolder
from penstock.tier.reading import ScanQuestion, TableReader
from penstock.tier.record_page import ReadPage
from penstock.tier.table import TierTable, WrittenLog
from store.files.segment import HEADER_BYTES
from store.records._records import RecordBatch
from store.records.records import Record, RecordType, lost_of, read_records
from store.topics import matches
from tests.crash.test_told_of_lost import damage
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import PenstockServer, ServeOptions
from tests.support.store_process import StoreProcess
from tests.tier.logs import FIRST, NOON_MS, SECOND, START, pieces, stamped, with_a_gap
from tests.tier.places import TablePlace
from tests.tier.test_cold_reads import FILTERS, Sent, client_of
from tests.tier.test_cold_sessions import Publishing
from tests.tier.test_reading import history, written
from tests.tier.tier_process import SMALL, Tier, oldest, wait_until

FAR = 1 << 40


def pages(reader: TableReader, wanted: ScanQuestion, max_bytes: int) -> Iterator[ReadPage]:
    at = wanted.start
    while at < wanted.stop:
        page = reader.scan(wanted._replace(start=at), max_bytes, 1 << 20)
        assert page.next > at
        assert not (page.number and page.lost)
        yield page
        at = page.next


def told(found: list[ReadPage]) -> list[tuple[Record, int]]:
    records = [record for page in found for record in read_records(memoryview(page.records))]
    return [(record, lost_of(record)) for record in records]


def end_of(log: list[tuple[int, bytes]]) -> int:
    return log[-1][0] + len(log[-1][1])


@pytest.mark.parametrize("topic_filter", ["#", "line/#", "line/+/temp", "line/7/temp", "+/7/#"])
@pytest.mark.parametrize("max_bytes", [1, 4096, 1 << 20])
def test_the_first_message_behind_a_gap_says_so(place: TablePlace, topic_filter: str, max_bytes: int) -> None:
    log = with_a_gap(1, 6)
    reader = written(place, log)
    gap = next(at for at, data in log if data[24] == RecordType.GAP)
    expected = [each for each in history(log) if matches(topic_filter, each.topic.decode())]
    behind = next(each.log_offset for each in expected if each.log_offset > gap)
    found = list(pages(reader, ScanQuestion(topic_filter, 0, end_of(log)), max_bytes))
    assert [record.log_offset for record, _ in told(found)] == [each.log_offset for each in expected]
    assert {record.log_offset: lost for record, lost in told(found) if lost} == {behind: 1}
    assert [record.payload for record, _ in told(found)] == [each.payload for each in expected]
    assert not any(page.lost for page in found)


def test_ranges_of_several_commits_count_each_and_adjacent_ones_as_one(place: TablePlace) -> None:
    table = TierTable.open(ObjectFolder(place.url, place.options), WrittenLog(FIRST, START, FAR))
    at, ends = START, []
    for number, size in enumerate((4096, 8, 1 << 20)):
        log = pieces(number, 1, start=at)
        writer = table.begin()
        writer.add(log[0][1], at)
        at = writer.end + size
        ends.append(at)
        writer.lose(at - 8)
        table.commit(writer.finish())
        writer = table.begin()
        writer.lose(at)
        table.commit(writer.finish())
    last = pieces(3, 1, start=at)
    writer = table.begin()
    writer.add(last[0][1], at)
    table.commit(writer.finish())
    reader = TableReader(TableHistory(ObjectFolder(place.url, place.options), 64 << 20))
    records = [(r.log_offset, lost) for r, lost in told(list(pages(reader, ScanQuestion("#", 0, end_of(last)), 4096)))]
    assert [lost for (before, _), (_, lost) in pairwise(records) if lost] == [1, 1, 1]
    assert sum(lost for _, lost in records) == 3
    for end in ends:
        assert min(offset for offset, lost in records if lost and offset >= end) < end + 4096


def test_range_dropped_before_it_was_written_is_told_after_the_table(place: TablePlace) -> None:
    """Of a table that has not heard of it yet: where the log begins is all that is asked for."""
    log = pieces(4, 3)
    reader = written(place, log)
    stop = end_of(log) + (1 << 20)
    found = list(pages(reader, ScanQuestion("#", 0, stop), 4096))
    assert [record for record, _ in told(found)] == [each for each in history(log) if not each.topic.startswith(b"$")]
    assert [(page.number, page.lost, page.next) for page in found][-1] == (0, 1, stop)
    assert not any(lost for _, lost in told(found))
    assert reader.scan(ScanQuestion("nothing/here", 0, stop), 4096, 1 << 20) == ReadPage(b"", 0, stop, -1, 1)


def test_the_header_of_the_segment_behind_the_table_is_no_loss(place: TablePlace) -> None:
    log = pieces(8, 2)
    reader = written(place, log)
    found = list(pages(reader, ScanQuestion("#", 0, end_of(log) + HEADER_BYTES), 4096))
    assert not any(page.lost for page in found)
    found = list(pages(reader, ScanQuestion("#", 0, end_of(log) + HEADER_BYTES + 8), 4096))
    assert found[-1].lost == 1


def test_a_message_that_says_so_does_not_make_an_answer_too_large(tmp_path: Path) -> None:
    batch = RecordBatch()
    for number in range(20):
        batch.append(RecordType.MESSAGE if number % 2 else RecordType.GAP, bytes(1000), topic=b"t" * (number % 2))
    reader = written(TablePlace(str(tmp_path / "t"), {}), [(START, stamped(batch, START, NOON_MS))])
    for limit in range(1048, 4200, 8):
        page = reader.scan(ScanQuestion("#", 0, START + len(bytes(batch))), limit, limit)
        assert 0 < len(page.records) <= limit


def test_lost_ranges_of_a_log_count_up_to_where_the_next_log_went_on(place: TablePlace) -> None:
    """A kill between the list and the range that has it: a restored log may then have messages there."""
    objects = ObjectFolder(place.url, place.options)
    log = pieces(5, 2)
    table = TierTable.open(objects, WrittenLog(FIRST, START, FAR))
    writer = table.begin()
    for at, data in log:
        writer.add(data, at)
    table.commit(writer.finish())
    writer = table.begin()
    writer.lose(table.end + 4096)
    table._commit_lost(writer.finish())  # and no more
    assert newest_listing(objects).lost == ()
    restored = TierTable.open(objects, WrittenLog(SECOND, START, FAR, {FIRST: table.end}))
    more = pieces(6, 1, start=restored.end)
    writer = restored.begin()
    writer.add(more[0][1], more[0][0])
    restored.commit(writer.finish())
    assert newest_listing(objects).lost == ()
    reader = TableReader(TableHistory(objects, 64 << 20))
    assert not any(lost for _, lost in told(list(pages(reader, ScanQuestion("#", 0, end_of(more)), 4096))))


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_list_in_a_folder_is_synced_before_the_range_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """Also if a process put it down that was killed before it was on the disk."""
    objects = ObjectFolder(str(tmp_path / "fleet"))
    table = TierTable.open(objects, WrittenLog(FIRST, START, FAR))
    writer = table.begin()
    writer.lose(table.end + 4096)
    lost = writer.finish()
    settle = ObjectFolder.make_durable
    settled: list[str] = []

    def noted(self: ObjectFolder, paths: list[str]) -> None:
        settled.extend(paths)
        settle(self, paths)

    if is_killed:
        table._commit_lost(lost)  # and no more
    monkeypatch.setattr(ObjectFolder, "make_durable", noted)
    table.commit(lost)
    names = objects.names("_penstock/lost")
    assert len(names) == 2
    assert {*names} <= {*settled[: settled.index(commit_path(1))]}


def test_reads_go_on_without_the_list(place: TablePlace, caplog: pytest.LogCaptureFixture) -> None:
    log = with_a_gap(7, 4)
    reader = written(place, log)
    objects = ObjectFolder(place.url, place.options)
    (name,) = [each for each in objects.names("_penstock/lost") if each.endswith(".parquet")]
    objects.delete([name])
    found = list(pages(reader, ScanQuestion("line/#", 0, end_of(log)), 1 << 20))
    expected = [each for each in history(log) if each.topic.startswith(b"line/")]
    assert [record for record, _ in told(found)] == expected
    assert "_penstock/lost" in caplog.text
    assert "bring the object back" in caplog.text


# --- real processes


def told_by(store: StoreProcess, sent: Sent, topic_filter: str) -> tuple[list[int], dict[int, int]]:
    """The numbers of the messages that are read, and what those say that say that something is lost."""
    numbers = {message_id: number for number, (_, _, message_id) in enumerate(sent.messages)}
    with client_of(store) as client:
        found = list(client.read(topic_filter))
    return [numbers[each.message_id] for each in found], {
        numbers[each.message_id]: each.lost for each in found if each.lost
    }


def as_of(topic_filter: str, sent: Sent, lost: list[int], told: dict[int, int]) -> tuple[list[int], dict[int, int]]:
    """What readers of a filter get if those of all messages are told so."""
    left = [
        number for number, each in enumerate(sent.messages) if number not in lost and matches(topic_filter, each[0])
    ]
    found: Counter[int] = Counter()
    for number, parts in told.items():
        found[next(each for each in left if each >= number)] += parts
    return left, dict(found)


@pytest.mark.catalogue("N51")
def test_a_client_is_told_of_a_gap_that_only_the_tier_knows(
    tmp_path: Path, store: StoreProcess, place: TablePlace, seed: int
) -> None:
    sent, lost = Sent(store, seed), [3, 9, 10, 11, 19]
    sent.more(25)
    store.terminate()
    damage(store.data, *(sent.messages[number][1] for number in lost))
    store.start()
    left, told = told_by(store, sent, "#")  # in the log
    assert (left, list(told)) == ([number for number in range(25) if number not in lost], [4, 12, 20])
    tier = Tier(tmp_path / "tier.log", store, place, serves=True)
    try:
        while oldest(store) < 800_000:
            sent.more(50)
        for topic_filter in FILTERS:
            assert told_by(store, sent, topic_filter) == as_of(topic_filter, sent, lost, told), topic_filter
    finally:
        tier.kill()


@pytest.mark.parametrize("commit_s", [1, 3_600])
def test_a_client_is_told_of_what_was_dropped_before_it_was_written(
    tmp_path: Path, store: StoreProcess, place: TablePlace, seed: int, commit_s: int
) -> None:
    """Whether the tier has put it down already or not: then the log's first message says so."""
    sent = Sent(store, seed)
    behind = {"tier.most_behind_bytes": 500_000}
    tier = Tier(tmp_path / "tier.log", store, place, serves=True, **behind)
    sent.more(20)
    wait_until(lambda: tier.has(20))
    tier.kill()
    while oldest(store) < 800_000:
        sent.more(50)
    tier = Tier(tmp_path / "tier.log", store, place, serves=True, **behind, **{"tier.commit_s": commit_s})
    try:
        if commit_s == 1:

            def is_written() -> bool:
                sent.more(5)  # while the tier starts, retention may drop what was sent before
                return tier.has(40)

            wait_until(is_written)
        numbers = {message_id: number for number, (_, _, message_id) in enumerate(sent.messages)}
        with client_of(store) as client:
            for topic_filter in FILTERS:
                found = [(numbers[each.message_id], each.lost) for each in client.read(topic_filter)]
                left = [number for number, each in enumerate(sent.messages) if matches(topic_filter, each[0])]
                places = [left.index(number) for number, _ in found]
                assert places[0] == 0
                assert places[-1] == len(left) - 1
                jumps = [there for (before, there) in pairwise(places) if there > before + 1]
                assert jumps, "retention may drop more meanwhile"
                assert [place for place, (_, lost) in zip(places, found, strict=True) if lost] == jumps, topic_filter
    finally:
        tier.kill()


@pytest.mark.parametrize("topic_filter", ["line/#", pytest.param("+/1/temp", marks=pytest.mark.nightly)])
def test_a_replay_over_mqtt_is_told(tmp_path: Path, topic_filter: str) -> None:
    """By the user property, as of the log."""
    server = PenstockServer(tmp_path / "data", tmp_path / "log", ServeOptions({"flush": "sync"}, SMALL))
    publishing = Publishing(server)
    publishing.more(20)
    server.terminate()
    damage(server.data, *(publishing.sent[number][1] for number in (3, 4)))
    settings = SMALL | {"tier.url": str(tmp_path / "fleet"), "tier.commit_s": 1}
    server = PenstockServer(tmp_path / "data", tmp_path / "log", ServeOptions(settings=settings))
    try:
        publishing.server = server
        publishing.until_dropped()
        device = Device(server.port, "history")
        device.connect()
        assert device.subscribe(topic_filter, 1, "earliest") == ReasonCode.GRANTED_QOS_1
        left = [
            each for number, each in enumerate(publishing.sent)
            if number not in (3, 4) and matches(topic_filter, each[0])
        ]  # fmt: skip
        found: list[Publish] = []
        while len(found) < len(left):
            found.append(device.next(Publish))
            device.send(PubAck(found[-1].packet_id or 0))
        assert [(each.topic_name, each.payload) for each in found] == left
        said = [dict(each.properties.user_properties).get("penstock-lost") for each in found]
        behind = next(number for number, each in enumerate(left) if publishing.sent.index(each) > 4)
        assert {number: each for number, each in enumerate(said) if each} == {behind: "1"}
    finally:
        server.kill()
