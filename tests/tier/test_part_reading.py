"""Messages are put together once for all pages, and pages have the same ones whatever is put together or kept."""

import random
from pathlib import Path

import pytest

from penstock.tier import part_reading
from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from penstock.tier.reading import ScanQuestion, TableReader
from store.topics import matches
from tests.tier.logs import pieces
from tests.tier.places import TablePlace
from tests.tier.test_compaction import compact, opened, write
from tests.tier.test_reading import history, scanned

FILTERS = ("#", "line/#", "+/7/#", "line/7/temp", "nothing/here")
FAR = 1 << 40
LOG = pieces(31, 12, messages=120)


def place_of(folder: Path, is_merged: bool) -> TablePlace:
    place = TablePlace(str(folder / "fleet"), {})
    table = opened(place)
    write(table, LOG)
    if is_merged:
        compact(place, table)
    return place


def opened_history(place: TablePlace) -> TableHistory:
    found = TableHistory(ObjectFolder(place.url, place.options), 64 << 20)
    found.refresh()
    return found


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("most_kept_bytes", [1_000, 1 << 20])
def test_pages_have_what_the_log_had(
    tmp_path: Path, is_merged: bool, most_kept_bytes: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_reading, "MOST_PUT_BYTES", most_kept_bytes)
    monkeypatch.setattr(part_reading, "PART_LOG_BYTES", 3_000)
    of_table = opened_history(place_of(tmp_path, is_merged))
    reader = TableReader(of_table)
    assert not is_merged or any(len(span.places) > 1 for span in of_table.spans_from(0))
    chance = random.Random(seed)
    messages = history(LOG)
    for topic_filter in FILTERS * 3:
        start, stop = sorted(chance.sample(range(LOG[-1][0] + len(LOG[-1][1])), 2))
        expected = [
            each for each in messages if matches(topic_filter, each.topic.decode()) and start <= each.log_offset < stop
        ]
        wanted = ScanQuestion(topic_filter, start, stop)
        assert list(scanned(reader, wanted, chance.choice((1, 5_000, 1 << 20)))) == expected
    reader.close()


@pytest.mark.parametrize("is_merged", [False, True])
def test_messages_are_put_together_once(tmp_path: Path, is_merged: bool) -> None:
    of_table = opened_history(place_of(tmp_path, is_merged))
    reader = TableReader(of_table)
    wanted = ScanQuestion("#", 0, FAR)
    first = list(scanned(reader, wanted, 2_000))
    places = [each for span in of_table.spans_from(0) for each in span.places]
    names = [("messages", each, "#") for each in places if of_table.selection(each, "#") is not None]
    made = [of_table.cache.seen(name) for name in names]
    assert sum(len(each.log_offsets) for each in made) == len(first)
    assert list(scanned(reader, wanted, 5_000)) == first
    assert all(of_table.cache.seen(name) is each for name, each in zip(names, made, strict=True))
    reader.close()
