"""Pages of names are bounded in names and in bytes, and leave nothing out."""

from __future__ import annotations

import pytest

from notify.requests.listings import MOST_LISTINGS, PAGE_BYTES, ListingEnded, NameSnapshots

NAMES = [f"c{number}" for number in range(10)]


def pages(snapshots: NameSnapshots[str], most: int, item: str, of_each: int = 1) -> list[list[str]]:
    found: list[list[str]] = []
    after: int | None = 0
    while after is not None:
        page = snapshots.page(after, most)
        found.append([name for name in page for _ in range(of_each) if page.takes(name, item)])
        after = page.after
    return found


def test_names_come_once_each_so_many_at_a_time() -> None:
    assert pages(NameSnapshots(lambda: list(NAMES)), 4, "") == [NAMES[:4], NAMES[4:8], NAMES[8:]]
    assert pages(NameSnapshots[str](list), 4, "") == [[]]


def test_a_page_ends_where_its_bytes_do_and_the_next_one_goes_on() -> None:
    """2,000 sessions with 100 filters of 64 KB each gave an answer that no frame has room for."""
    found = pages(NameSnapshots(lambda: list(NAMES)), 100, "ü" * (PAGE_BYTES // 6))
    assert [len(each) for each in found] == [3, 3, 3, 1]
    assert [name for page in found for name in page] == NAMES


def test_of_one_name_there_are_as_many_items_as_a_page_has_room_for() -> None:
    found = pages(NameSnapshots(lambda: list(NAMES)), 100, "x" * 60_000, of_each=100)
    assert found == [[name] for name in NAMES]
    found = pages(NameSnapshots(lambda: list(NAMES)), 100, "x" * (PAGE_BYTES // 4), of_each=100)
    assert found == [[name] * 4 for name in NAMES]


def test_a_listing_that_was_left_is_forgotten_in_time() -> None:
    snapshots = NameSnapshots(lambda: list(NAMES))
    first = snapshots.page(0, 4)
    assert list(first) == NAMES[:4]
    assert first.after is not None
    for _ in range(MOST_LISTINGS):
        list(snapshots.page(0, 4))
    with pytest.raises(ListingEnded):
        snapshots.page(first.after, 4)
