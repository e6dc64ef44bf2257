"""More retained messages than one page has: found for many at once, sent as the client takes them."""

import pytest

from gateway.delivery.exchange import SENT_PER_ROUND
from gateway.mqtt.packets import PubAck, Publish, QoS
from lightqueue.queues import retained_search
from lightqueue.queues._queues import heads_at
from notify.local import reads as local_reads
from notify.local.reads import PER_PAGE, RetainedPages
from notify.requests import reads
from store.log.commitlog import CommitLog
from store.records._records import LogMemory
from store.state.retained import RetainedTopics
from tests.support.mqtt_bench import Bench, Client

COUNT = 2 * PER_PAGE + 300
TOPICS = [f"t/{i:05}" for i in range(COUNT)]


@pytest.fixture
def publisher(bench: Bench) -> Client:
    publisher = bench.connect("b")
    for start in range(0, COUNT, 1_000):
        topics = TOPICS[start : start + 1_000]
        publisher.send(*[Publish(topic, b"old", QoS(1), retain=True, packet_id=1) for topic in topics])
    publisher.received()
    return publisher


def taken(client: Client) -> list[Publish]:
    """All that comes while what came is acknowledged."""
    found: list[Publish] = []
    while messages := client.messages():
        found += messages
        client.send(*[PubAck(message.packet_id or 0) for message in messages if message.qos])
    return found


@pytest.mark.usefixtures("publisher")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("durable", [False, True])
def test_each_comes_once_in_the_order_of_the_topics(bench: Bench, qos: int, durable: bool) -> None:
    client = (bench.durable if durable else bench.connect)("a", receive_maximum=100)
    client.subscribe("t/+", qos=qos)
    found = taken(client)
    assert [message.topic_name for message in found] == TOPICS
    assert {(message.qos, message.retain, message.payload) for message in found} == {(qos, True, b"old")}
    assert len(client.connection.inflight) == 0


@pytest.mark.usefixtures("publisher")
def test_only_what_is_sent_next_is_known_of_those_that_the_client_does_not_take(bench: Bench) -> None:
    client = bench.connect("a", receive_maximum=10)
    client.subscribe("t/#", qos=1)
    assert len(client.messages()) == 10
    session = client.connection.session
    assert len(session.backlog) <= PER_PAGE / SENT_PER_ROUND + 1
    assert session.listings == 1


def test_message_stored_before_its_retained_page_comes_once(bench: Bench, publisher: Client) -> None:
    client = bench.connect("a", receive_maximum=10)
    client.subscribe("t/#", qos=1)
    publisher.publish_whole(TOPICS[-1], b"new", 1, retain=True)
    publisher.publish_whole(TOPICS[-2], b"", 1, retain=True)
    publisher.publish_whole(TOPICS[0], b"new", 1, retain=True)  # its page is known already
    found = taken(client)
    assert [message.topic_name for message in found if message.retain] == TOPICS[:-2]
    live = [(message.topic_name, message.payload) for message in found if not message.retain]
    assert live == [(TOPICS[-1], b"new"), (TOPICS[-2], b""), (TOPICS[0], b"new")]


@pytest.mark.usefixtures("publisher")
def test_a_client_that_leaves_in_the_midst_of_it(bench: Bench) -> None:
    client = bench.connect("a", receive_maximum=10)
    client.subscribe("t/#", qos=1)
    client.lose()
    again = bench.connect("a", receive_maximum=1_000)
    again.subscribe("t/#", qos=1)
    assert [message.topic_name for message in taken(again)] == TOPICS


def test_pages_are_found_once_for_all_until_a_retained_message_is_stored(
    bench: Bench, publisher: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_search, "HEADS_S", 60.0)  # on a busy machine a page would have fewer
    pages = RetainedPages(bench.store)
    first = pages.page("t/+", None)
    assert len(first.messages) == PER_PAGE
    assert pages.page("t/+", None) is first
    publisher.publish("u", b"not retained")
    assert pages.page("t/+", None) is first
    publisher.publish(TOPICS[0], b"", retain=True)
    assert pages.page("t/+", None).messages[:-1] == first.messages[1:]


def test_a_page_ends_where_finding_its_messages_takes_long(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is verified: a thousand of a megabyte each took a tenth of a second. The rest are on pages of their own."""
    publisher = bench.connect("b")
    topics = [f"large/{i}" for i in range(6)]
    for topic in topics:
        publisher.publish_whole(topic, b"x", 1, retain=True)
    looked: list[int] = []

    def found_one(memory: LogMemory, log_offsets: list[int]) -> list[tuple[int, int, bytes]]:
        looked.append(len(log_offsets))
        return heads_at(memory, log_offsets)

    monkeypatch.setattr(retained_search, "heads_at", found_one)
    monkeypatch.setattr(retained_search, "HEADS_S", 0.0)
    pages: list[int] = []
    heads_found = retained_search.heads_found

    def noted(log: CommitLog, log_offsets: list[int], behind: str | None) -> object:
        before = len(looked)
        found = heads_found(log, log_offsets, behind)
        pages.append(len(looked) - before)
        return found

    monkeypatch.setattr(local_reads, "heads_found", noted)
    monkeypatch.setattr(reads, "heads_found", noted)
    client = bench.connect("a")
    client.subscribe("large/+", qos=1)
    assert [message.topic_name for message in taken(client)] == topics
    assert pages == [1] * len(topics)


@pytest.mark.usefixtures("publisher")
def test_a_page_is_of_so_few_topics_that_a_turn_can_take_two(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they match or not, a store in this process looks at no more."""
    limits: list[int] = []
    find_retained = retained_search.find_retained

    def noted(retained: RetainedTopics, topic_filter: str, after: str | None, limit: int) -> object:
        limits.append(limit)
        return find_retained(retained, topic_filter, after, limit)

    if bench.broker.store.status is None:
        pytest.skip("the store is elsewhere")
    monkeypatch.setattr(local_reads, "find_retained", noted)
    client = bench.connect("a")
    client.subscribe("t/+")
    assert [message.topic_name for message in taken(client)] == TOPICS
    assert limits == [500] * (COUNT // 500 + 1)
