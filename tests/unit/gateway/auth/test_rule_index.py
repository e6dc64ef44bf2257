"""Many permission rules: the right ones are found for a client, and a decision does not look at the others."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.access import AccessParts, Question
from gateway.auth.errors import AuthError
from gateway.auth.identity import Identity
from gateway.auth.permissions import Action, Permissions, parse_own_rules, parse_permissions, parse_rules
from tests.support.mqtt_packet_client import access_of

PATTERNS = st.lists(st.text("ab*", min_size=1, max_size=5), min_size=1, max_size=3)
NAMES = st.text("ab", max_size=6)
RULES = st.lists(st.fixed_dictionaries({}, optional={"users": PATTERNS, "clients": PATTERNS}), max_size=8)


def rule(topics: list[str], **names: object) -> dict[str, Any]:
    return {"allow": ["publish"], "topics": topics, **names}


@given(RULES, NAMES, NAMES)
def test_all_rules_are_found_that_are_for_a_client(rules: list[dict[str, Any]], user: str, client: str) -> None:
    parsed = parse_rules([rule([f"t/{i}"], **names) for i, names in enumerate(rules)], 100)
    found = Permissions(parsed).rules_for(user, client)
    assert found == tuple(each for each in parsed if each.is_for(user, client))


@pytest.mark.parametrize("star", ["", "*", "-*"])
@pytest.mark.slow
def test_a_hundred_thousand_rules_by_name(star: str) -> None:
    document = {"rule": [rule([f"devices/{i}/#"], users=[f"user-{i}{star}"]) for i in range(100_000)]}
    access = access_of(AccessParts(permissions=parse_permissions(document)))
    suffix = star.replace("*", "1")
    began_s = time.process_time()
    for i in range(0, 100_000, 200):
        question = Question(f"user-{i}{suffix}", f"c{i}", Action.PUBLISH, f"devices/{i}/a")
        assert access.decide(Identity(question.username), question) == 2
    assert time.process_time() - began_s < 0.5  # 500 decisions; all rules together take 30 ms each time


def test_rules_that_are_for_everybody_are_few() -> None:
    with pytest.raises(AuthError, match="for everybody have more than 4000 topics"):
        parse_permissions({"rule": [rule([f"t/{i}"]) for i in range(4_001)]})
    with pytest.raises(AuthError, match=r"for 'sensor-\*' have more than 4000 topics"):
        parse_permissions({"rule": [rule([f"t/{i}"], users=["sensor-*"]) for i in range(4_001)]})
    permissions = parse_permissions({"rule": [rule([f"t/{i}"]) for i in range(4_000)]})
    access = access_of(AccessParts(permissions=permissions))
    began_s = time.process_time()
    for i in range(100):
        assert access.decide(Identity("u"), Question("u", "c", Action.PUBLISH, f"u/{i}")) == -1
    assert time.process_time() - began_s < 1


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ([rule(["a"])] * 101, "at most 100"),
        ([rule(["a"] * 401)], "at most 400 topics and names"),
        ([rule(["a"], users=["u"] * 401)], "at most 400 topics and names"),
        ([{"allow": [["publish"]], "topics": ["a"]}], "is not one of"),
        ([{"allow": [{}], "topics": ["a"]}], "is not one of"),
        ([{"allow": ["publish"], "topics": ["a"], "max_qos": 1.0}], "is not 0, 1 or 2"),
        ([{"allow": ["publish"], "topics": ["a"], "max_qos": []}], "is not 0, 1 or 2"),
        ([None], "is not a table"),
        ({}, "are a list"),
        (float("nan"), "are a list"),
    ],
)
def test_own_rules_of_a_client_are_bounded(rules: Any, complaint: str) -> None:
    with pytest.raises(AuthError, match=complaint):
        parse_own_rules(rules, 100)
    assert len(parse_own_rules([rule(["a"])] * 100, 100)) == 100
