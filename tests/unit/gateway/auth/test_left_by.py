"""Who left a message, and by what it is judged when it is due: rules without a store."""

from __future__ import annotations

import logging
import tomllib
from collections import Counter
from typing import Any

import pytest

from gateway.auth.access import AccessParts
from gateway.auth.identity import Certificates, Identity
from gateway.auth.left_by import LeftJudge, judge, left_by, left_by_client
from gateway.auth.passwords import PasswordTable, parse_passwords
from gateway.auth.permissions import MAX_QOS, REFUSED, UNANSWERED, parse_permissions
from lightqueue.queues.left_messages import ANSWER_S, AT_A_TIME, RETRY_S, LeftMessage, LeftMessages
from notify.requests.contents import left_fault
from penstock.sdk.outgoing import outgoing
from store.audit import Audit
from store.ratelimit import RateLimitedLog
from store.state.left_by import PUBLISH, LeftBy, decode, encode
from tests.support.mqtt_packet_client import access_of

LEAVES = '[[rule]]\nallow = ["publish", "retain"]\ntopics = ["%u/#"]\n'
OWN = parse_permissions(tomllib.loads('[[rule]]\nallow = ["publish"]\ntopics = ["own/#"]\n')).rules


def parts(**fields: Any) -> AccessParts:
    permissions = parse_permissions(tomllib.loads(LEAVES))
    return AccessParts(**{"authenticators": (Certificates(),), "permissions": permissions, **fields})


def judged(by: bytes, topic: str = "a/t", retain: bool = False, **fields: Any) -> int:
    answers: list[int] = []
    left = decode(by)
    assert left is not None
    judge(access_of(parts(**fields)), left, "c", topic, retain, answers.append)
    return answers[0]


def table(*users: str) -> PasswordTable:
    return parse_passwords("".join(f"{user}:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g\n" for user in users))


def test_left_by_names_the_client_that_is_judged_when_due() -> None:
    access = access_of(parts())
    assert left_by(None, Identity("a"), "c", "a/t", False) == b""
    assert left_by(access, None, "c", "a/t", False) == b""
    assert left_by(access_of(AccessParts()), Identity(), "c", "a/t", False) == b""  # nothing is judged there
    assert decode(left_by(access, Identity("a"), "c", "a/t", False)) == LeftBy("a")
    by_password = Identity("a", verifier="v", namespace="acme", login="acme-a")
    assert decode(left_by(access, by_password, "c", "a/t", True)) == LeftBy("a", "acme", "acme-a")
    by_token = Identity("a", rules=OWN, key=b"k")
    assert decode(left_by(access, by_token, "c", "own/t", True)) == LeftBy("a", "", None, b"k", PUBLISH)
    assert decode(left_by(access, by_token, "c", "a/t", True)) == LeftBy("a", "", None, b"k")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x91\x01", b"\x91\xa1\xff"])
def test_messages_with_unreadable_left_by_are_not_sent(data: bytes) -> None:
    assert decode(data) is None
    answers: list[Any] = []
    refused: Counter[str] = Counter()
    events = RateLimitedLog(logging.getLogger("penstock"))
    judge = LeftJudge(access_of(parts()), events, Audit(), refused)
    judge.judge([LeftMessage(data, b"c", "a/t", 0, False)], answers.append)
    assert answers == [[False]]
    assert refused == {"left": 1}


def test_left_by_of_store_clients_names_user_and_own_rules() -> None:
    access = access_of(parts())
    assert decode(left_by_client(access, Identity("a"))) == LeftBy("a", is_client=True)
    assert decode(left_by_client(access, Identity("a", rules=OWN))) == LeftBy("a", own=3, is_client=True)
    assert left_by_client(access_of(AccessParts()), Identity()) == b""


def test_a_client_of_the_store_has_to_say_what_it_was_told() -> None:
    def records(left_by: bytes, due_ms: int | None = 1) -> memoryview:
        first = outgoing("t/1", b"1", False, key="k")
        return memoryview(first.record + outgoing("t/2", b"2", False, key="k", due_ms=due_ms, left_by=left_by).record)

    by = left_by_client(access_of(parts()), Identity("a"))
    assert left_fault(records(by), by) == ""
    assert left_fault(records(b"", None), by) == ""
    assert left_fault(records(b""), b"") == ""
    assert left_fault(records(b""), by)
    assert left_fault(records(encode(LeftBy("b", is_client=True))), by)


def test_fields_that_a_newer_version_adds_are_passed_over() -> None:
    assert decode(b"\x97\xa1a\xa0\xc0\xc4\x00\x00\xc2\x01") == LeftBy("a")


def test_rules_of_the_file() -> None:
    by = encode(LeftBy("a"))
    assert judged(by) == MAX_QOS
    assert judged(by, "b/t") == REFUSED
    assert judged(by, "b/t", permissions=None) == MAX_QOS  # everybody may do everything


def test_a_user_who_is_gone() -> None:
    by = encode(LeftBy("a", login="a"))
    assert judged(by, passwords=table("a", "b")) == MAX_QOS
    assert judged(by, passwords=table("b")) == REFUSED
    assert judged(by, passwords=None) == REFUSED
    assert judged(encode(LeftBy("a")), passwords=table("b")) == MAX_QOS  # its certificate let it in


def test_a_key_that_is_gone() -> None:
    by = encode(LeftBy("a", key=b"k"))
    assert judged(by, token_keys=lambda: frozenset((b"k",))) == MAX_QOS
    assert judged(by) == REFUSED


def test_left_messages_are_judged_by_the_clients_own_rules_too() -> None:
    by = encode(LeftBy("x", own=PUBLISH))
    assert judged(by, "own/t") == MAX_QOS
    assert judged(by, "own/t", retain=True) == REFUSED  # that was the file's


class Elsewhere:
    def __init__(self, answer: int) -> None:
        self.answer = answer

    def known(self, _: object) -> int | None:
        return None

    def ask(self, _: object, then: Any) -> None:
        then(self.answer)


@pytest.mark.parametrize("answer", [1, REFUSED, UNANSWERED])
def test_left_messages_of_users_elsewhere_are_judged_by_that_server(answer: int) -> None:
    assert judged(encode(LeftBy("a")), "b/t", source=Elsewhere(answer)) == answer


# --- waiting for an answer


def message(number: int) -> LeftMessage:
    return LeftMessage(b"", b"c", str(number), 0, False)


class Gateway:
    def __init__(self) -> None:
        self.is_there = True
        self.asked: list[Any] = []

    def ask(self, messages: Any, then: Any) -> bool:
        if self.is_there:
            self.asked.append((messages, then))
        return self.is_there


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def left(gateway: Gateway) -> LeftMessages:
    left = LeftMessages()
    left.judged_by(gateway)
    return left


def test_left_messages_are_asked_about_in_one_question_at_a_time(left: LeftMessages, gateway: Gateway) -> None:
    names = [(1, number) for number in range(AT_A_TIME + 2)]
    left.ask({name: message(name[1]) for name in names}, 0.0)
    left.ask({(2, 0): message(0)}, 0.0)
    assert len(left) == AT_A_TIME + 3
    assert left.collect_waiting(1.0) == []
    ((messages, then),) = gateway.asked
    assert [each.topic for each in messages] == [str(number) for number in range(AT_A_TIME)]
    then([number % 2 == 0 for number in range(AT_A_TIME)])
    then([False] * AT_A_TIME)  # a second answer
    verdicts = left.collect_verdicts()
    assert verdicts == {name: name[1] % 2 == 0 for name in names[:AT_A_TIME]}
    assert left.collect_waiting(1.0) == [*names[AT_A_TIME:], (2, 0)]
    assert len(left) == 0


def test_unanswered_left_messages_are_asked_about_later_and_after_others(left: LeftMessages, gateway: Gateway) -> None:
    left.ask({(1, number): message(number) for number in range(3)}, 0.0)
    left.ask({(2, 0): message(9)}, 0.0)  # while a question is open
    gateway.asked[0][1]([None, True])
    assert left.collect_verdicts() == {(1, 1): True}
    assert left.collect_waiting(5.0) == []
    assert left.collect_waiting(5.0 + RETRY_S) == [(2, 0), (1, 0), (1, 2)]


def test_a_gateway_that_never_answers(left: LeftMessages, gateway: Gateway) -> None:
    left.ask({(1, 0): message(0)}, 0.0)
    assert left.collect_waiting(ANSWER_S - 1) == []
    assert left.collect_waiting(ANSWER_S) == []
    assert left.collect_waiting(ANSWER_S + RETRY_S) == [(1, 0)]
    gateway.asked[0][1]([True])
    assert not left.has_verdicts


def test_no_gateway(left: LeftMessages, gateway: Gateway) -> None:
    gateway.is_there = False
    left.ask({(1, 0): message(0)}, 0.0)
    assert len(left) == 1
    assert left.collect_waiting(0.0) == []
    assert left.collect_waiting(RETRY_S) == [(1, 0)]
