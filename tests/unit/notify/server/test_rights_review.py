"""How many questions about what clients have open wait for answers at a time, and what answers do."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.auth.access import AccessParts, Allowed, Question
from gateway.auth.permissions import MAX_QOS, REFUSED, UNANSWERED
from gateway.auth.tokens import TokenCheck, secret_key
from notify.requests.users import Permission
from notify.server.rights_review import MOST_ASKED, MOST_ASKED_OF_ONE, OpenRights, RightsReview
from penstock.servers.store_users import StoreUsers
from store.wire import messages as wire
from store.wire.messages import Role
from tests.support.mqtt_packet_client import access_of
from tests.support.store_protocol_bench import Talk, WireBench
from tests.support.token_users import SECRET, SETTINGS, token

LASTS_S = 60


class Decider:
    """A PermissionSource that answers when the test says so; `at_once` is its answer until then."""

    def __init__(self) -> None:
        self.at_once: int | None = MAX_QOS
        self.waiting: list[tuple[Question, Allowed]] = []

    def known(self, question: Question) -> int | None:
        return None

    def ask(self, question: Question, then: Allowed) -> None:
        if self.at_once is not None:
            then(self.at_once)
        else:
            self.waiting.append((question, then))

    def answer(self, allowed: Callable[[Question], int]) -> None:
        """What waits, not what is asked meanwhile."""
        waiting, self.waiting = self.waiting, []
        for question, then in waiting:
            then(allowed(question))


class Reviewed:
    """Clients that are reviewed: what is taken away from each, and the turns of the loop."""

    def __init__(self, bench: WireBench) -> None:
        self.decider = Decider()
        check = TokenCheck(SETTINGS, [secret_key(SECRET)], None)
        parts = AccessParts(authenticators=(check,), source=self.decider, asks_again_s=LASTS_S)
        self._users = StoreUsers(access_of(parts))
        self._bench = bench
        self._soon: deque[Callable[[], None]] = deque()
        self.review = RightsReview(self._soon.append)
        self.talks: list[Talk] = []
        self.taken: list[Permission] = []
        self._rights: list[OpenRights] = []

    def client(self, name: str, follows: int) -> Talk:
        talk = self._bench.connect(name, Role.CLIENT, judge=self._users, password=token("ann"))
        for number in range(follows):
            assert isinstance(talk.call(wire.Follow(f"{name}/{number}", False, -1, False)), wire.Following)
        self.talks.append(talk)
        self._rights.append(OpenRights(talk.conversation, self._bench.peers.groups, self.taken.append))
        return talk

    def tick(self, now_s: float) -> None:
        """Answers from before have expired."""
        self._users.replaced()
        for rights in self._rights:
            self.review.tick(rights, now_s)

    def turns(self) -> None:
        for _ in range(100_000):
            if not self._soon:
                return
            self._soon.popleft()()
        raise AssertionError("it never ends")

    @property
    def is_over(self) -> bool:
        return all(rights.round is None and not rights.asked for rights in self._rights)


@pytest.fixture
def reviewed(tmp_path: Path) -> Iterator[Reviewed]:
    bench = WireBench(tmp_path)
    yield Reviewed(bench)
    bench.store.close()


def begin(reviewed: Reviewed) -> None:
    """The answers to what is open have expired."""
    reviewed.tick(0)
    reviewed.turns()
    assert reviewed.is_over
    reviewed.decider.at_once = None
    reviewed.tick(LASTS_S)
    reviewed.turns()


def test_few_questions_wait_at_a_time(reviewed: Reviewed) -> None:
    clients = [reviewed.client(f"c{number}", 20) for number in range(20)]
    begin(reviewed)
    asked: Counter[str] = Counter()
    while reviewed.decider.waiting:
        topics = [question.topic for question, _ in reviewed.decider.waiting]
        by_client = Counter(topic.split("/")[0] for topic in topics)
        assert len(topics) <= MOST_ASKED
        assert max(by_client.values()) <= MOST_ASKED_OF_ONE
        asked.update(topics)
        reviewed.decider.answer(lambda _: MAX_QOS)
        reviewed.turns()
    assert asked == dict.fromkeys((f"c{i}/{k}" for i in range(len(clients)) for k in range(20)), 1)
    assert reviewed.is_over
    assert not reviewed.taken


def test_rights_review_ends_only_what_is_refused(reviewed: Reviewed) -> None:
    reviewed.client("c", 3)
    begin(reviewed)
    answers = {"c/0": MAX_QOS, "c/1": REFUSED, "c/2": UNANSWERED}
    reviewed.decider.answer(lambda question: answers[question.topic])
    reviewed.turns()
    assert [each.topic for each in reviewed.taken] == ["c/1"]


def test_rights_review_ends_nothing_without_an_answer(reviewed: Reviewed) -> None:
    """As where a server that keeps failing is not asked for a while."""
    reviewed.client("c", 3 * MOST_ASKED)
    reviewed.tick(0)
    reviewed.decider.at_once = UNANSWERED
    reviewed.tick(LASTS_S)
    reviewed.turns()
    assert reviewed.is_over
    reviewed.decider.at_once = REFUSED
    reviewed.tick(2 * LASTS_S)
    reviewed.turns()
    assert len(reviewed.taken) == 3 * MOST_ASKED


def test_a_connection_that_ends_is_not_asked_about(reviewed: Reviewed) -> None:
    """Nor does the answer to a question that is under way do anything."""
    talk = reviewed.client("c", 3 * MOST_ASKED_OF_ONE)
    begin(reviewed)
    talk.cut()
    reviewed.decider.answer(lambda _: REFUSED)
    reviewed.turns()
    assert not reviewed.decider.waiting
    assert not reviewed.taken
    assert reviewed.is_over
