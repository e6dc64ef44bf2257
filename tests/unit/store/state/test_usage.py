"""The usage of each user, by the log: the same after any crash, and less again when things go."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from notify.local.user_quotas import QuotaLimits, UserLimits, UserQuotas
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute
from store.state.changes import (
    SessionAssigned,
    SessionClosed,
    SessionEnded,
    SessionOpened,
    Subscribed,
    SubscriptionState,
    Unsubscribed,
    WillState,
)
from store.state.usage import Counted, Used, counted_value
from tests.support.stores import KEPT_BYTES, Stores, change, crash_copy, fill, publish, run_upkeep, write_step

DELAYED, RETAINED, TOPIC = Counted.DELAYED, Counted.RETAINED, Counted.TOPIC
LATER_MS = 4_000_000_000_000
ACMES = ("$ns:acme/b", "$ns:acme/c")
USERS = ("a", *ACMES)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data")
    yield stores
    stores.close()


def counted(
    store: MessageStore, user: str, as_what: Counted, topic: str, payload: bytes = b"x", due_ms: int = 0
) -> int:
    batch = RecordBatch()
    attributes = encode_attribute(Attribute.COUNTED, counted_value(as_what, user))
    flags = RecordFlag.RETAIN if as_what & RETAINED else RecordFlag(0)
    if due_ms:
        attributes += encode_attribute(Attribute.DUE_MS, due_ms.to_bytes(8, "little"))
        flags |= RecordFlag.DELAYED
    batch.append(RecordType.MESSAGE, payload, topic=topic.encode(), attributes=attributes, flags=flags)
    return store.append(batch)


def used(store: MessageStore, user: str) -> list[Used]:
    return [store.usage.used(each, user) for each in (TOPIC, RETAINED, DELAYED)]


def used_in(store: MessageStore, namespace: str) -> list[Used]:
    return [store.usage.used_in(each, namespace) for each in (TOPIC, RETAINED, DELAYED)]


def test_a_retained_message_is_the_last_ones(stores: Stores) -> None:
    store = stores()
    counted(store, "a", TOPIC | RETAINED, "t/1", b"123")
    counted(store, "a", RETAINED, "t/2", b"")
    assert used(store, "a") == [Used(1, 0), Used(1, 6), Used()]
    counted(store, "b", RETAINED, "t/1", b"12345")
    assert used(store, "a")[1] == Used()
    assert used(store, "b")[1] == Used(1, 8)
    publish(store, "t/1", b"of nobody", retain=True)
    assert used(store, "b") == [Used(), Used(), Used()]
    counted(store, "a", RETAINED, "t/1", b"1")
    publish(store, "t/1", b"", retain=True)
    assert used(store, "a")[1] == Used()


def test_a_delayed_message_counts_until_it_is_sent_or_cancelled(stores: Stores) -> None:
    store = stores()
    first = counted(store, "a", DELAYED | TOPIC, "d", due_ms=LATER_MS)
    counted(store, "a", DELAYED | RETAINED, "e", b"12", due_ms=LATER_MS)
    assert used(store, "a") == [Used(1, 0), Used(), Used(2, 0)]
    assert store.dispatching.cancel(LATER_MS, first)
    assert used(store, "a")[2] == Used(1, 0)
    store.dispatching.step(LATER_MS + 1, 1e9)
    assert used(store, "a") == [Used(1, 0), Used(1, 3), Used()]  # and is a retained one from now on


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_the_same_after_any_crash(stores: Stores, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = stores()
    expected: dict[str, tuple[str, int]] = {}
    topics: dict[str, str] = {}
    for number in range(900):
        user, topic = rng.choice(USERS), f"t/{rng.randrange(400)}"
        payload = bytes(rng.randrange(4))
        is_new = topics.setdefault(topic, user) == user
        counted(store, user, RETAINED | (TOPIC if is_new else Counted(0)), topic, payload)
        if payload:
            expected[topic] = user, len(topic) + len(payload)
        else:
            expected.pop(topic, None)
        if rng.random() < 0.02:
            write_step(store, store.end)  # only some of it
        if number % 300 == 299:
            copy = stores(crash_copy(tmp_path / "data", tmp_path / f"copy{number}"))
            for each in USERS:
                sizes = [size for owner, size in expected.values() if owner == each]
                wanted = [Used(list(topics.values()).count(each), 0), Used(len(sizes), sum(sizes)), Used()]
                assert used(store, each) == used(copy, each) == wanted
            in_acme = [
                Used(*map(sum, zip(*both, strict=True)))
                for both in zip(*(used(copy, each) for each in ACMES), strict=True)
            ]
            assert used_in(store, "acme") == used_in(copy, "acme") == in_acme
            copy.write_index()
            stores.stop(copy)
            again = stores(tmp_path / f"copy{number}")
            assert [used(again, each) for each in USERS] == [used(store, each) for each in USERS]
            assert used_in(again, "acme") == in_acme


def test_retention_keeps_what_is_carried_and_frees_topics(stores: Stores) -> None:
    store = stores(retention_bytes=KEPT_BYTES, retention_check_s=1)
    counted(store, "a", TOPIC | RETAINED, "kept", b"12")
    counted(store, "a", TOPIC, "gone")
    counted(store, "a", TOPIC | DELAYED, "later", due_ms=LATER_MS)
    counted(store, "a", TOPIC, "filler")
    fill(store, 6)
    store.write_index()
    run_upkeep(store)
    assert store.log.base
    run_upkeep(store)
    assert used(store, "a") == [Used(1, 0), Used(1, 6), Used(1, 0)]  # filler is there


def test_sessions_and_subscriptions_count_for_who_owns_them(stores: Stores, tmp_path: Path) -> None:
    store = stores()
    change(store, SessionOpened("c1", False, 3600, user="a"), Subscribed("c1", [SubscriptionState("x", 1)]))
    change(store, SessionOpened("c2", False, 3600, user="a"))
    change(store, SessionOpened("old", False, 3600), Subscribed("old", [SubscriptionState("y", 1)]))
    change(store, Subscribed("c2", [SubscriptionState("x", 1), SubscriptionState("y", 0)]))
    change(store, Subscribed("c2", [SubscriptionState("x", 2)]))
    sessions = store.sessions
    assert (dict(sessions.users), dict(sessions.subscriptions_of)) == ({"a": 2}, {"a": 3})
    change(store, SessionAssigned("c2", "b"), SessionAssigned("old", "b"), Unsubscribed("c2", ["x", "z"]))
    copy = stores(crash_copy(tmp_path / "data", tmp_path / "copy")).sessions
    for each in (sessions, copy):
        assert (dict(each.users), dict(each.subscriptions_of)) == ({"a": 1, "b": 2}, {"a": 1, "b": 2})
    change(store, SessionOpened("c2", True, 3600, user="b"), SessionEnded("c1"), SessionEnded("old"))
    assert (dict(sessions.users), dict(sessions.subscriptions_of)) == ({"b": 1}, {})


def test_subscriptions_of_a_namespace_are_those_of_its_sessions(stores: Stores, tmp_path: Path) -> None:
    store = stores()
    for client_id, user in (
        ("$ns:acme/c1", "$ns:acme/b"),
        ("$ns:acme/c2", ""),
        ("$ns:beta/c1", "$ns:beta/b"),
        ("c", "b"),
    ):
        change(store, SessionOpened(client_id, False, 3600, user=user))
        change(store, Subscribed(client_id, [SubscriptionState("x", 1), SubscriptionState("y", 1)]))
    change(store, Unsubscribed("$ns:acme/c1", ["x", "z"]), SessionEnded("$ns:beta/c1"))
    copy = stores(crash_copy(tmp_path / "data", tmp_path / "copy"))
    for each in (store, copy):
        assert dict(each.sessions.subscriptions_in) == {"acme": 3}
        assert dict(each.sessions.namespaces) == {"acme": 2}


def test_a_will_counts_when_it_is_sent_and_one_too_many_is_not(stores: Stores) -> None:
    store = stores()
    quotas = UserQuotas(store, QuotaLimits(UserLimits(retained=1), UserLimits(topics=2)))
    store.absent.begin()
    wills = [("c1", "a", "w/1"), ("c2", "a", "w/2"), ("c3", "b", "w/3"), ("c4", "", "w/4"), ("c5", "", "w/5")]
    wills += [(f"$ns:acme/c{number}", "", f"$ns:acme/w/{number}") for number in range(3)]
    for client_id, user, topic in wills:
        will = WillState(topic, b"gone", 1, not client_id.startswith("$"), b"", 0)
        change(store, SessionOpened(client_id, False, 0, will, user=user), SessionClosed(client_id, 0, True))
    retained = [topic for _, _, topic in wills if store.retained.get(topic.encode()) is not None]
    assert retained == ["w/1", "w/3", "w/4", "w/5"]
    assert used(store, "a") == [Used(), Used(1, 7), Used()]
    assert used_in(store, "acme")[0] == Used(2)
    assert quotas.refused["retained"] == 1
    assert quotas.refused["namespace_topics"] == 1
    assert not len(store.sessions)


def test_granted_usage_counts_until_the_log_has_it(stores: Stores) -> None:
    store, now_s = stores(), [0.0]
    quotas = UserQuotas(store, QuotaLimits(UserLimits(topics=2, retained=2, retained_bytes=20)), lambda: now_s[0])
    publish(store, "there", b"1")
    store.write_index()
    assert quotas.take_message("a", TOPIC, b"there", 0) == (Counted(0), "")
    for topic in (b"1", b"2", b"1"):
        assert quotas.take_message("a", TOPIC, topic, 0) == (TOPIC, "")
    fault = "quota.user_topics: user a has 2 topics, and may have no more than 2"
    assert quotas.take_message("a", TOPIC, b"3", 0) == (Counted(0), fault)
    counted(store, "a", TOPIC, "1")
    assert quotas.take_message("a", TOPIC, b"3", 0)[1] == fault
    now_s[0] = 100.0  # the other one never came
    assert quotas.take_message("a", TOPIC, b"3", 0) == (TOPIC, "")
    assert quotas.take_message("a", RETAINED, b"r", 15) == (RETAINED, "")
    counted(store, "a", RETAINED, "r", bytes(14))
    assert "has 15 bytes of retained messages" in quotas.take_message("a", RETAINED, b"s", 6)[1]
    assert quotas.take_message("a", RETAINED, b"r", 20) == (RETAINED, "")  # in place of the other
    assert quotas.take_message("a", RETAINED, b"r", 21)[1]
    assert quotas.take_message("b", RETAINED, b"s", 6) == (RETAINED, "")
    assert dict(+quotas.refused) == {"topics": 2, "retained_bytes": 2}
