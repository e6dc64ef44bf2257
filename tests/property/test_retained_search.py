"""Searching retained messages by jumps finds what looking at each of them would, in any pages."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightqueue.queues.retained_search import find_retained
from store.log.index import Index
from store.state.retained import RetainedTopics
from store.topics import matches

levels = st.sampled_from(["", "a", "b", "ab", "a\1", "a-", "é", "z", "$x", "0", "1", "2", "3"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.builds(
    lambda parts, end: "/".join([*parts, "#"] if end else parts),
    st.lists(levels | st.just("+"), min_size=1, max_size=4),
    st.booleans(),
).filter(bool)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return (tmp_path_factory.mktemp("index") for _ in count())


def write(index: Index, retained: RetainedTopics) -> None:
    """Have the index take all of it."""
    while retained.stage(1 << 60) is not None:
        index.write(0, 0)
        retained.written()
    index.write(0, 0)
    retained.written()


@given(
    st.lists(st.tuples(topics, st.booleans()), max_size=60),
    st.lists(st.tuples(topics, st.booleans()), max_size=15),
    filters,
    st.integers(1, 5),
)
def test_retained_search_finds_all_matching_topics(
    folders: Iterator[Path],
    stored: list[tuple[str, bool]],
    fresh: list[tuple[str, bool]],
    topic_filter: str,
    limit: int,
) -> None:
    index = Index(next(folders), 1 << 20)
    retained = RetainedTopics(index)
    expected: dict[str, int] = {}
    for at, (topic, removed) in enumerate([*stored, *fresh]):
        if at == len(stored):
            write(index, retained)
        retained.set(topic.encode(), at, removed)
        expected.pop(topic, None)
        if not removed:
            expected[topic] = at
    found: list[int] = []
    after: str | None = None
    while True:
        page, after = find_retained(retained, topic_filter, after, limit)
        found += page
        if after is None:
            break
    assert sorted(found) == sorted(at for topic, at in expected.items() if matches(topic_filter, topic))
