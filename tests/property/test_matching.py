"""Topic filters: the trie, matches() and overlap() against models that try everything."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightqueue.queues.matching import FilterTrie, has_wildcard, overlap
from store.topics import matches

WORDS = ("a", "b", "", "$s", "aa", "ü")
names = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("/".join).filter(bool)
filter_levels = st.lists(st.sampled_from((*WORDS, "+")), min_size=1, max_size=5)
filters = st.builds(
    lambda levels, any_below: "/".join([*levels, "#"] if any_below else levels), filter_levels, st.booleans()
).filter(bool) | st.just("#")


def naive(topic_filter: str, topic_name: str) -> bool:
    """MQTT 5 section 4.7 as a regular expression."""
    if topic_name.startswith("$") and topic_filter.startswith(("+", "#")):
        return False
    pattern = re.escape(topic_filter).replace(r"\+", "[^/]*")
    if topic_filter == "#":
        pattern = ".*"
    elif topic_filter.endswith("/#"):
        pattern = pattern[: -len(r"/\#")] + "(/.*)?"
    return re.fullmatch(pattern, topic_name, re.DOTALL) is not None


def brute_overlap(one: str, other: str) -> bool:
    """Whether one of all names of up to six levels, of the filters' words and a fresh one, is matched by both."""
    words = {*one.split("/"), *other.split("/"), "fresh"} - {"+", "#"}
    for depth in range(1, max(len(one.split("/")), len(other.split("/"))) + 2):
        for levels in itertools.product(words, repeat=depth):
            # An `x` in front keeps $ from being special, as overlap() does.
            name = "x/" + "/".join(levels)
            if naive("x/" + one, name) and naive("x/" + other, name):
                return True
    return False


@pytest.mark.mqtt("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.2-1", "MQTT-4.7.3-4")
@settings(max_examples=10 * settings().max_examples)
@given(filters, names)
def test_matches_is_the_specification(topic_filter: str, topic_name: str) -> None:
    assert matches(topic_filter, topic_name) == naive(topic_filter, topic_name)


@settings(max_examples=5 * settings().max_examples)
@given(st.lists(filters, max_size=30), st.lists(names, min_size=1, max_size=10), st.data())
def test_the_trie_is_matches_over_all_filters(known: list[str], topics: list[str], data: st.DataObject) -> None:
    trie: FilterTrie[str] = FilterTrie()
    for topic_filter in known:
        trie.set(topic_filter, topic_filter)
    removed = data.draw(st.lists(st.sampled_from(known))) if known else []
    for topic_filter in [*removed, "never/there"]:
        trie.remove(topic_filter)
    left = set(known) - set(removed)
    assert len(trie) == len(left)
    for topic in topics:
        assert sorted(trie.match(topic)) == sorted(f for f in left if matches(f, topic))


@settings(max_examples=5 * settings().max_examples)
@given(st.lists(filters, max_size=30))
def test_an_emptied_trie_keeps_nothing(known: list[str]) -> None:
    trie: FilterTrie[int] = FilterTrie()
    for i, topic_filter in enumerate(known):
        trie.set(topic_filter, i)
    for topic_filter in known:
        trie.remove(topic_filter)
    assert len(trie) == 0
    assert trie._root.children == {}


short_filters = st.builds(
    lambda levels, any_below: "/".join([*levels, "#"] if any_below else levels),
    st.lists(st.sampled_from(("a", "b", "", "+")), min_size=1, max_size=3),
    st.booleans(),
).filter(bool) | st.just("#")


@settings(max_examples=3 * settings().max_examples)
@given(short_filters, short_filters)
def test_overlap_is_some_topic_that_both_match(one: str, other: str) -> None:
    assert overlap(one, other) == overlap(other, one) == brute_overlap(one, other)


def test_a_filter_deeper_than_the_interpreters_stack() -> None:
    trie: FilterTrie[int] = FilterTrie()
    deep = "/".join(["a"] * 30_000)
    trie.set(deep, 1)
    trie.set(deep + "/#", 2)
    assert sorted(trie.match(deep)) == [1, 2]
    trie.remove(deep)
    trie.remove(deep + "/#")
    assert trie._root.children == {}


def test_wildcards_are_seen() -> None:
    assert [has_wildcard(text) for text in ("a/b", "+", "a/#", "$s/a")] == [False, True, True, False]
