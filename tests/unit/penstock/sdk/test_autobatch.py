"""Messages that are held back, so that those of a topic are sent together. The test moves the clock."""

from __future__ import annotations

import pytest

from penstock.sdk.autobatch import AutoBatch, Gatherer
from penstock.sdk.outgoing import Outgoing
from penstock.sdk.publishing import Entry
from store.wire.messages import Wait


def entry(topic: str = "t", size: int = 100, wait: Wait = Wait.POLICY) -> Entry:
    return Entry(Outgoing(topic, bytes(size), wait), lambda _: None)


def leaves_at(settings: AutoBatch, came_s: float) -> float:
    """When a lone message goes that came at a time, if the clock ticks from then on."""
    gatherer = Gatherer(settings)
    assert gatherer.add(entry(), came_s) == ()
    now_s = came_s
    while True:
        now_s += settings.tick_s
        due = gatherer.due(now_s)
        if due:
            assert [len(batch) for batch in due] == [1]
            assert not gatherer
            return now_s


@pytest.mark.catalogue("D14")
def test_a_lone_message_leaves_within_15_ms() -> None:
    assert 0.010 <= leaves_at(AutoBatch(), 0.0) <= 0.015
    for phase_us in range(0, 5_000, 250):  # the clock ticks already; the message comes between two of its ticks
        assert 0.010 <= leaves_after(phase_us / 1e6) <= 0.015 + 1e-9


def leaves_after(phase_s: float) -> float:
    """How long a message waits that comes so long after a tick of a clock that ticks for another topic."""
    gatherer = Gatherer(AutoBatch())
    assert gatherer.add(entry("other"), 0.0) == gatherer.add(entry("t"), phase_s) == ()
    for tick in range(1, 5):
        now_s = tick * AutoBatch().tick_s
        if any(each.message.topic == "t" for batch in gatherer.due(now_s) for each in batch):
            return now_s - phase_s
    raise AssertionError("it waits for ever")


@pytest.mark.catalogue("D14")
def test_ticks_are_those_of_all_topics() -> None:
    gatherer = Gatherer(AutoBatch())
    gatherer.add(entry("other"), 0.0)  # its clock ticks already, at any phase
    gatherer.add(entry("t"), 0.0049)
    ticks = [0.005, 0.010, 0.015]
    went = [(now_s, each[0].message.topic) for now_s in ticks for each in gatherer.due(now_s)]
    assert went == [(0.010, "other"), (0.015, "t")]


@pytest.mark.catalogue("D14")
def test_a_full_batch_goes_at_once() -> None:
    gatherer = Gatherer(AutoBatch(batch_bytes=1_000))
    assert [len(gatherer.add(entry(), 0.0)) for _ in range(10)] == [0] * 9 + [10]
    assert gatherer.due(1.0) == []
    assert len(gatherer.add(entry(size=5_000), 0.0)) == 1


def test_each_topic_and_wish_has_a_batch_of_its_own() -> None:
    gatherer = Gatherer(AutoBatch())
    for each in (entry("a"), entry("b"), entry("a"), entry("a", wait=Wait.FLUSHED)):
        gatherer.add(each, 0.0)
    assert [[each.message.topic for each in batch] for batch in gatherer.due(0.010)] == [["a", "a"], ["b"], ["a"]]


@pytest.mark.catalogue("D14")
def test_past_the_bound_of_all_together_it_goes_straight_through_and_in_order() -> None:
    gatherer = Gatherer(AutoBatch(batch_bytes=1_000, total_bytes=2_000))
    held = [entry(f"t{number}", 500) for number in range(4)]
    assert all(gatherer.add(each, 0.0) == () for each in held)
    over = entry("t0", 500)
    assert gatherer.add(over, 0.0) == [held[0], over]
    assert list(gatherer.add(entry("new"), 0.0)) != []
    for each in (*held, over):
        gatherer.answered(each)
    assert gatherer.add(entry("new"), 0.0) == ()


def test_bounds_that_make_no_sense() -> None:
    for bad in ({"batch_bytes": 0}, {"delay_s": 0}, {"total_bytes": 5}):
        with pytest.raises(ValueError, match="must be above 0"):
            AutoBatch(**bad)
