"""How often a client may be wrong, and whose turn to be verified comes next: the rules by themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.auth import attempts as module
from gateway.auth import shared_attempts as shared_module
from gateway.auth.attempts import Attempts
from gateway.auth.early import EarlyLogins
from gateway.auth.fair_queue import BEGUN_AT_ONCE, FairQueue, Job
from gateway.auth.identity import Answer, Attempt, Credentials, Identity, LoginRefused, Verdict
from gateway.auth.limited import Limited
from gateway.auth.settings import AuthSettings
from gateway.auth.shared_attempts import SharedAttempts
from gateway.mqtt.reason_codes import ReasonCode
from store.wire.operator_messages import LoginsEnded

WRONG = LoginRefused("wrong", is_failure=True)
HERE, THERE = "192.0.2.1", "198.51.100.1"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def attempts(clock: Clock, **settings: int | bool) -> Attempts:
    return Attempts(AuthSettings(**settings), clock)  # type: ignore[arg-type]


def fail(counted: Attempts, times: int, source: str = HERE, user: str = "alice") -> int:
    """How many of these say that the address is to be banned."""
    return sum(counted.failed(source, user, WRONG) for _ in range(times))


class Doors:
    """The store between two processes: it notes what one says, and tells the others at once."""

    def __init__(self) -> None:
        self.told: list[LoginsEnded] = []
        self.others: list[SharedAttempts] = []

    def logins_ended(self, ended: LoginsEnded) -> None:
        self.told.append(ended)
        for other in self.others:
            other.take(ended.ends)


def shared(clock: Clock, **settings: int | bool) -> list[Attempts]:
    """Those of two processes, which hear of each other at once."""
    both = [attempts(clock, **settings) for _ in range(2)]
    doors = Doors(), Doors()
    each = [SharedAttempts(one, door, clock, lambda then: then()) for one, door in zip(both, doors, strict=True)]
    doors[0].others, doors[1].others = each[1:], each[:1]
    return both


def test_processes_share_what_failed_and_what_succeeded(clock: Clock) -> None:
    one, other = shared(clock, max_failures=4, max_failures_of_user=6)
    long_name = "x" * 70_000
    for user in ("alice", long_name):
        fail(one, 2, user=user)
        fail(other, 2, user=user)
        assert one.refuses(HERE, user) is not None
        assert other.refuses(HERE, user) is not None
    one.succeeded(HERE, "alice")
    assert other.refuses(HERE, "alice") is None
    assert other.refuses(HERE, long_name) is not None
    for number in range(6):  # an attack on alice from everywhere, at one of them
        fail(one, 1, source=f"203.0.113.{number}")
    assert other.refuses(THERE, "alice") is not None
    assert other.refuses(HERE, "alice") is None  # where she logged in before, at the other one
    assert (one.failures, other.failures) == (10, 4)


def test_a_ban_is_made_by_a_process_that_counts_the_last_failure_itself(clock: Clock) -> None:
    one, other = shared(clock, ban_failures=4)
    assert [fail(each, 1) for each in (one, other, one)] == [0, 0, 0]
    assert fail(other, 1) == 1
    assert fail(one, 1) == 1  # as it has not heard of the ban yet


def test_a_flood_is_not_told_as_a_whole(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_module, "TOLD_PER_SECOND", 3)
    counted, doors = attempts(clock), Doors()
    told = doors.told
    later: list[Callable[[], None]] = []
    SharedAttempts(counted, doors, clock, later.append)
    fail(counted, 5)
    counted.succeeded(HERE, "alice")
    later.pop()()
    assert not later
    assert [[end.how for end in ended.ends] for ended in told] == [["wrong"] * 3 + ["right"]]
    clock.now_s += 1
    fail(counted, 1)
    later.pop()()
    counted.succeeded(HERE, "alice")
    later.pop()()
    counted.succeeded(HERE, "alice")  # which changes nothing
    assert not later
    assert len(told) == 3


def test_a_user_from_one_address_may_fail_a_few_times(clock: Clock) -> None:
    counted = attempts(clock, max_failures=3)
    fail(counted, 2)
    assert counted.refuses(HERE, "alice") is None
    fail(counted, 1)
    refused = counted.refuses(HERE, "alice")
    assert refused is not None
    assert refused.reason_code is ReasonCode.CONNECTION_RATE_EXCEEDED
    assert counted.refuses(HERE, "bob") is None
    assert counted.refuses(THERE, "alice") is None
    clock.now_s += 20.1
    assert counted.refuses(HERE, "alice") is None  # a third of the window: one more
    fail(counted, 1)
    assert counted.refuses(HERE, "alice") is not None
    counted.succeeded(HERE, "alice")
    assert counted.refuses(HERE, "alice") is None
    assert counted.limited["user_at_address"] == 2


def test_an_address_may_fail_more_often_unless_it_is_of_this_machine(clock: Clock) -> None:
    for source, is_limited in ((HERE, True), ("127.0.0.1", False), ("", False), ("::1", False)):
        counted = attempts(clock, max_failures_of_address=5)
        for number in range(5):
            fail(counted, 1, source, f"u{number}")
        assert (counted.refuses(source, "other") is not None) is is_limited
    counted = attempts(clock, max_failures_of_address=1, limit_loopback=True)
    fail(counted, 1, "127.0.0.1")
    assert counted.refuses("127.0.0.1", "other") is not None


def test_a_user_who_is_attacked_comes_in_from_where_he_was_right_before(clock: Clock) -> None:
    counted = attempts(clock, max_failures_of_user=5)
    counted.succeeded(HERE, "alice")
    for number in range(5):
        fail(counted, 1, f"198.51.100.{number}")
    assert counted.refuses(HERE, "alice") is None
    assert counted.refuses("203.0.113.1", "alice") is not None
    assert counted.refuses("203.0.113.1", "bob") is None


def test_an_address_that_goes_on_is_banned(clock: Clock) -> None:
    counted = attempts(clock, ban_failures=10)
    assert fail(counted, 9) == 0
    counted.succeeded(HERE, "bob")  # they are some among many
    assert fail(counted, 9) == 0
    assert fail(counted, 1) == 1
    assert fail(attempts(clock, ban_failures=0), 1_000) == 0
    assert fail(attempts(clock, ban_failures=10), 1_000, "127.0.0.1") == 0
    assert fail(attempts(clock, ban_failures=10, limit_loopback=True), 10, "127.0.0.1") == 1


def test_counts_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COUNTED", 10)
    counted = attempts(clock, max_failures=1, max_failures_of_address=0)
    for number in range(100):
        fail(counted, 1, HERE, f"user {number}" + 70_000 * "x")
        counted.succeeded(THERE, f"user {number}")
    held = (counted._of_pair._counts, counted._of_user._counts, counted._right)
    assert all(len(each) <= 10 for each in held)
    assert counted.refuses(HERE, "user 99" + 70_000 * "x") is not None
    assert counted.refuses(HERE, "user 99" + 70_000 * "y") is None


# --- whose turn it is


class Work:
    """Jobs, and in which order they begin."""

    def __init__(self, slots: int) -> None:
        self.begun: list[str] = []
        self.running: list[bool] = []  # whether each is of the slow lane
        self.later: list[Callable[[], None]] = []
        self.queue = FairQueue(slots, self.later.append)

    def put(self, source: str, user: str, slow: bool = False) -> Job:
        def begin() -> None:
            self.begun.append(f"{source} {user}")
            self.running.append(slow)

        job = Job(source, user, begin)
        self.queue.put(job, slow)
        return job

    def order(self) -> list[str]:
        """One is done after the other, until none is left."""
        while self.running:
            self.queue.done(self.running.pop(0))
        assert not self.queue.waiting
        return self.begun


def test_networks_addresses_and_users_have_their_turns() -> None:
    work = Work(1)
    work.put("192.0.2.1", "first")
    for number in range(3):
        work.put("192.0.2.1", "a")
        work.put("192.0.2.1", "b")
        work.put(f"192.0.2.{number + 2}", "c")
    work.put("198.51.100.1", "late")
    order = work.order()
    assert order[:2] == ["192.0.2.1 first", "198.51.100.1 late"]
    assert set(order[2:6]) == {"192.0.2.2 c", "192.0.2.3 c", "192.0.2.4 c", "192.0.2.1 a"}
    assert order[6:] == ["192.0.2.1 b", "192.0.2.1 a", "192.0.2.1 b", "192.0.2.1 a", "192.0.2.1 b"]
    assert len(order) == 11


def test_the_slow_lane_has_half_of_the_slots_and_is_not_starved() -> None:
    work = Work(2)
    for _ in range(9):
        work.put(HERE, "slow", slow=True)
    assert len(work.begun) == 1
    for _ in range(9):
        work.put(THERE, "quick")
    assert work.begun == [f"{HERE} slow", f"{THERE} quick"]
    order = work.order()
    assert f"{HERE} slow" in order[2:8]
    assert order[-1] == f"{HERE} slow"
    assert len(order) == 18


def test_cancelled_jobs_do_not_begin() -> None:
    work = Work(1)
    jobs = [work.put(HERE, f"u{number}") for number in range(4)]
    jobs[0].cancel()  # it has begun
    jobs[2].cancel()
    jobs[2].cancel()
    assert work.queue.waiting == 2
    assert work.order() == [f"{HERE} u0", f"{HERE} u1", f"{HERE} u3"]


class Slow:
    """An authenticator that answers when the test says so, and remembers one user."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Answer]] = []

    def recall(self, credentials: Credentials, answer: Answer) -> bool:
        if credentials.username == "known":
            answer(Identity("known"))
        return credentials.username == "known"

    def verify(self, credentials: Credentials, answer: Answer) -> None:
        self.asked.append((credentials.username or "", answer))


def test_remembered_logins_neither_wait_nor_are_limited(clock: Clock) -> None:
    counted, inner = attempts(clock, max_failures=1), Slow()
    limited = Limited(inner, counted, FairQueue(1, lambda _: None))
    answers: list[Verdict] = []
    for user in ("a", "b"):
        limited.check(Credentials("", user, b"", source=HERE), answers.append)
    fail(counted, 5, user="known")
    limited.check(Credentials("", "known", b"", source=HERE), answers.append)
    assert answers == [Identity("known")]
    assert [user for user, _ in inner.asked] == ["a"]


def test_logins_queued_before_the_limit_was_reached_are_refused_a_few_at_a_time(clock: Clock) -> None:
    counted, inner = attempts(clock, max_failures=2), Slow()
    later: list[Callable[[], None]] = []
    limited = Limited(inner, counted, FairQueue(1, later.append))
    answers: list[Verdict] = []
    for _ in range(100):
        limited.check(Credentials("", "alice", b"", source=HERE), answers.append)
    while inner.asked:
        _, answer = inner.asked.pop(0)
        counted.failed(HERE, "alice", WRONG)
        answer(WRONG)
    assert answers.count(WRONG) == 2
    assert len(answers) <= 2 + BEGUN_AT_ONCE
    while later:
        later.pop(0)()
    assert len(answers) == 100


def test_no_more_are_checked_at_a_time_than_may_fail_and_the_rest_waits(clock: Clock) -> None:
    counted, inner = attempts(clock, max_failures=3), Slow()
    later: list[Callable[[], None]] = []
    limited = Limited(inner, counted, FairQueue(20, later.append))
    answers: list[Verdict] = []

    def heard(verdict: Verdict) -> None:
        counted.note(HERE, "alice", verdict)
        answers.append(verdict)

    def hear_all(verdict: Verdict) -> int:
        heard_of = 0
        while inner.asked or later:
            if later:
                later.pop(0)()
            elif inner.asked:
                inner.asked.pop(0)[1](verdict)
                heard_of += 1
        return heard_of

    for _ in range(100):
        limited.check(Credentials("", "alice", b"", source=HERE), heard)
    assert len(inner.asked) == 3
    assert hear_all(Identity("alice")) == 100  # who is right waits, and is not refused
    for _ in range(100):
        limited.check(Credentials("", "alice", b"", source=HERE), heard)
    gone = Credentials("", "alice", b"", source=HERE)
    limited.check(gone, lambda _: pytest.fail("it left"))
    gone.attempt.abandon()
    assert hear_all(WRONG) == 3
    assert len(answers) == 200
    assert not counted.under_way.waiting


def test_a_user_at_an_address_where_others_are_checked_waits_and_may_leave(clock: Clock) -> None:
    """Early logins and others share the room below a limit."""
    crowd = Crowd(clock, max_failures_of_address=2)
    assert crowd.verified == ["stranger-0"]  # one failed before: there is room for one
    crowd.alice.abandon()
    crowd.inner.hear("stranger-0", None)
    crowd.add("alice")
    while crowd.inner.asked:
        user = crowd.verified[0]
        crowd.inner.hear(user, Identity(user))
    assert [user for user, _ in crowd.answers] == [*STRANGERS, "alice"]


class KnowingAlice:
    """A Verifier whose answers a test gives: of passwords, and of what only looks as if there were one."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Callable[[Verdict], None]]] = []
        self.pretending: list[Callable[[], None]] = []

    def knows(self, username: str) -> bool:
        return username == "alice"

    def recall(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> bool:
        return False

    def verify(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        self.asked.append((credentials.username or "", answer))

    def pretend(self, credentials: Credentials, then: Callable[[], None]) -> None:
        self.pretending.append(then)

    def hear(self, user: str, verdict: Verdict = WRONG) -> None:
        """Answer the user's that has been verified for the longest."""
        for at, (name, answer) in enumerate(self.asked):
            if name == user:
                del self.asked[at]
                answer(verdict)
                return
        raise AssertionError(f"{user} is not being verified")


STRANGERS = ("stranger-0", "stranger-1", "stranger-2")


class Crowd:
    """At an address where logins failed: three strangers, of whom one is being verified, and alice behind them."""

    def __init__(self, clock: Clock, **settings: int) -> None:
        self.counted, self.inner = attempts(clock, **settings), KnowingAlice()
        fail(self.counted, 1, user="x")
        queue, early = FairQueue(1, lambda _: None), FairQueue(1, lambda _: None)
        logins = EarlyLogins(self.inner, self.counted, queue, early)
        self.limited = Limited(self.inner, self.counted, queue, early=logins)
        self.answers: list[tuple[str, Verdict]] = []
        for stranger in STRANGERS:
            self.add(stranger)
        self.alice = self.add("alice")

    def add(self, user: str) -> Attempt:
        credentials = Credentials("", user, b"", source=HERE)
        self.limited.check(credentials, lambda verdict: self.answers.append((user, verdict)))
        return credentials.attempt

    @property
    def verified(self) -> list[str]:
        return [user for user, _ in self.inner.asked]

    def hear_strangers(self) -> None:
        for stranger in STRANGERS:
            self.inner.hear(stranger)


def test_a_user_who_is_right_comes_in_before_the_strangers_at_the_address(clock: Clock) -> None:
    crowd = Crowd(clock)
    assert crowd.verified == ["stranger-0", "alice"]
    crowd.inner.hear("alice", Identity("alice"))
    assert crowd.answers == [("alice", Identity("alice"))]
    crowd.hear_strangers()
    assert not crowd.inner.asked
    assert not crowd.inner.pretending


def test_a_user_who_is_wrong_hears_it_in_turn_and_after_as_much_work_as_a_stranger(clock: Clock) -> None:
    crowd = Crowd(clock)
    crowd.inner.hear("alice")
    assert not crowd.answers
    crowd.hear_strangers()
    assert [user for user, _ in crowd.answers] == list(STRANGERS)
    crowd.inner.pretending.pop()()
    assert crowd.answers[3:] == [("alice", WRONG)]


def test_a_user_has_one_password_verified_early_at_a_time(clock: Clock) -> None:
    crowd = Crowd(clock)
    crowd.add("alice")
    crowd.inner.hear("alice")
    assert crowd.verified == ["stranger-0"]  # the answer to the first is still to come
    crowd.hear_strangers()
    crowd.inner.pretending.pop()()
    assert crowd.verified == ["alice"]  # the second, in its turn
    crowd.add("alice")
    assert crowd.verified == ["alice", "alice"]


def test_a_wrong_password_counts_also_where_its_client_leaves(clock: Clock) -> None:
    crowd = Crowd(clock)
    crowd.alice.abandon()  # while it is verified
    crowd.inner.hear("alice")
    assert crowd.answers == [("alice", WRONG)]
    again = crowd.add("alice")
    crowd.inner.hear("alice")
    again.abandon()  # before it had its turn
    assert crowd.answers == [("alice", WRONG)] * 2
    crowd.hear_strangers()
    assert not crowd.inner.asked
    assert not crowd.inner.pretending
