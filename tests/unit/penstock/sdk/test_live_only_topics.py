"""A client learns with each Welcome which topics the store keeps in no queue."""

from penstock.sdk.filters import LiveOnlyTopics
from store.wire.messages import Welcome


def _welcome(*live_only: str) -> Welcome:
    return Welcome(1, "store", 1, 1 << 20, 1 << 20, 1_000, list(live_only), 0)


def test_live_only_topics_are_those_of_the_welcome() -> None:
    topics, welcome = LiveOnlyTopics(), _welcome("live/#")
    assert [topics.has(topic, welcome) for topic in ("live/7", "line/7", "live/7")] == [True, False, True]


def test_live_only_topics_are_forgotten_with_another_welcome() -> None:
    topics = LiveOnlyTopics()
    assert not topics.has("live/7", None)
    assert topics.has("live/7", _welcome("live/#"))
    assert not topics.has("live/7", _welcome("other/#"))
