"""Rules of topic permissions: which one decides."""

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.errors import AuthError
from gateway.auth.permissions import REFUSED, Action, decide, parse_permissions
from gateway.auth.placeholders import FilledLevels
from gateway.auth.topic_patterns import Filter, Pattern
from store.topics import matches
from tests.support.server_process import ROOT

LEVELS = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVELS, st.just("+")), max_size=3).filter(lambda found: found != [""]))
    return "/".join([*levels, "#"] if draw(st.booleans()) or not levels else levels)


@given(filters(), filters(), TOPICS)
def test_covering_filter_matches_every_topic_of_the_covered_one(wide: str, narrow: str, topic: str) -> None:
    if Filter.parse(wide).covers(Filter.parse(narrow)) and matches(narrow, topic):
        assert matches(wide, topic)


@given(filters(), filters(), TOPICS)
def test_two_filters_that_match_one_topic_meet(one: str, other: str, topic: str) -> None:
    if matches(one, topic) and matches(other, topic):
        assert Filter.parse(one).meets(Filter.parse(other))
        assert Filter.parse(other).meets(Filter.parse(one))


@given(filters(), TOPICS)
def test_a_filter_covers_the_topics_that_it_matches(topic_filter: str, topic: str) -> None:
    assert Filter.parse(topic_filter).covers(Filter.parse(topic)) == matches(topic_filter, topic)


def ask(rules: str, action: Action, topic: str, username: str = "alice", client_id: str = "c1") -> int | None:
    return decide(parse_permissions(tomllib.loads(rules)).rules, username, client_id, action, topic)


SECRET = """
[[rule]]
deny = ["subscribe", "publish"]
topics = ["secret/#"]
[[rule]]
users = ["al*"]
allow = ["publish", "subscribe"]
topics = ["#"]
max_qos = 1
[[rule]]
clients = ["c1"]
allow = ["retain"]
topics = ["own/%c/+"]
"""


@pytest.mark.parametrize(
    ("action", "topic", "expected"),
    [
        (Action.PUBLISH, "a", 1),
        (Action.PUBLISH, "secret/a", REFUSED),
        (Action.SUBSCRIBE, "a/#", 1),
        (Action.SUBSCRIBE, "#", REFUSED),  # it would show what is secret
        (Action.SUBSCRIBE, "+/a", REFUSED),
        (Action.SUBSCRIBE, "+", REFUSED),
        (Action.SUBSCRIBE, "$SYS/#", None),
        (Action.RETAIN, "own/c1/a", 2),
        (Action.RETAIN, "own/c2/a", None),
        (Action.RETAIN, "own/c1/a/b", None),
    ],
)
def test_the_first_rule_that_speaks_of_it_decides(action: Action, topic: str, expected: int | None) -> None:
    assert ask(SECRET, action, topic) == expected


def test_rules_for_users_are_not_for_nobody() -> None:
    rules = '[[rule]]\nusers = ["*"]\nallow = ["publish"]\ntopics = ["#"]'
    assert ask(rules, Action.PUBLISH, "a", username="") is None
    assert ask(rules, Action.PUBLISH, "a", username="anybody") == 2


@pytest.mark.parametrize("name", ["+", "#", "a/b", "", "a/#"])
def test_a_name_cannot_be_more_than_a_level(name: str) -> None:
    rules = '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["home/%u/x", "%c/#"]'
    for topic in ("home/+/x", "home/a/b/x", "home/#", "#", "a/x", "home//x", "/x", f"home/{name}/x"):
        assert ask(rules, Action.SUBSCRIBE, topic, username=name, client_id=name) is None
    denies = '[[rule]]\ndeny = ["publish"]\ntopics = ["home/%u/x"]'
    assert ask(denies, Action.PUBLISH, "home/a/x", username=name) == REFUSED


@pytest.mark.parametrize("name", ["$SYS", "$dead", "$"])
def test_a_name_cannot_begin_as_the_servers_topics(name: str) -> None:
    rules = '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["%u/#", "%c/#", "a/%u/x", "%u%c/#", "$SYS/%u"]'
    for topic in (f"{name}/#", f"{name}/a", f"{name}{name}/a", f"a/{name}/x", f"$SYS/{name}", "$SYS/x"):
        assert ask(rules, Action.SUBSCRIBE, topic, username=name, client_id=name) is None
    denies = (
        f'[[rule]]\ndeny = ["subscribe"]\ntopics = ["%u/#"]\n[[rule]]\nallow = ["subscribe"]\ntopics = ["{name}/#"]'
    )
    assert ask(denies, Action.SUBSCRIBE, f"{name}/a", username=name) == REFUSED


@given(filters(), TOPICS, TOPICS)
def test_a_filter_of_dead_letters_shows_no_more_than_its_topics_do(wanted: str, topic: str, denied: str) -> None:
    """Whatever it matches, the topic behind it is judged, however often one stands behind another."""
    rules = (
        f'[[rule]]\ndeny = ["subscribe"]\ntopics = ["{denied}"]\n[[rule]]\nallow = ["subscribe"]\ntopics = ["$dead/#"]'
    )
    for dead in (f"$dead/g/{denied}", f"$dead/g/$dead/h/{denied}"):
        for asked in (f"$dead/g/{wanted}", "$dead/+/" + wanted):
            if matches(asked, dead):
                assert ask(rules, Action.SUBSCRIBE, asked) == REFUSED


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("billing", 2),
        ("c1-x", 2),
        ("c1-", 2),
        ("alice*", 2),
        ("alicex", None),
        ("other", None),
        ("night", REFUSED),
        (None, 2),
    ],
)
def test_groups(group: str | None, expected: int | None) -> None:
    text = """
[[rule]]
deny = ["subscribe"]
topics = ["#"]
groups = ["night*"]
[[rule]]
allow = ["subscribe"]
topics = ["a"]
groups = ["billing", "%c-*", "%u"]
[[rule]]
allow = ["subscribe"]
topics = ["a", "b"]
"""
    permissions = parse_permissions(tomllib.loads(text))
    assert permissions.names_groups
    assert decide(permissions.rules, "alice*", "c1", Action.SUBSCRIBE, "a", group=group) == expected
    assert decide(permissions.rules, "", "c1", Action.SUBSCRIBE, "b", group="x") is None


@given(st.lists(st.sampled_from(["a", "b", "*", "ab"]), max_size=6).map("".join), st.text("ab", max_size=8))
def test_a_star_in_a_group_stands_for_any_characters(pattern: str, name: str) -> None:
    if pattern and name:
        text = f'[[rule]]\nallow = ["subscribe"]\ntopics = ["#"]\ngroups = ["{pattern}"]'
        is_allowed = (
            decide(parse_permissions(tomllib.loads(text)).rules, "u", "c", Action.SUBSCRIBE, "a", group=name) == 2
        )
        assert is_allowed == bool(re.fullmatch(pattern.replace("*", ".*"), name))


def test_a_name_with_a_placeholder_in_it_is_a_name() -> None:
    assert Pattern.parse("a/%c-%u").filled(FilledLevels("%c", "%u"), False) == Filter(("a", "%u-%c"), False)


def test_the_rules_in_the_documentation_say_what_it_says() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rules = page.split("<!-- permissions:")[1].split("```toml\n")[1].split("```")[0]
    assert ask(rules, Action.PUBLISH, "devices/someone/x", "someone") == 1
    assert ask(rules, Action.SUBSCRIBE, "devices/someone/#", "someone") == REFUSED
    assert ask(rules, Action.SUBSCRIBE, "$SYS/#", "admin-1") == 2
    assert ask(rules, Action.RETAIN, "devices/someone/x", "someone") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rules = 1", "rules: unknown"),
        ('default = "maybe"', "default: 'maybe'"),
        ('[rule]\nallow = "publish"', "two brackets"),
        ('[[rule]]\ntopics = ["a"]', "rule 1: needs either"),
        ('[[rule]]\nallow = ["publish"]\ndeny = ["publish"]\ntopics = ["a"]', "rule 1: needs either"),
        ('[[rule]]\nallow = ["read"]\ntopics = ["a"]', "'read' is not one of publish, retain, subscribe, replay"),
        ('[[rule]]\nallow = []\ntopics = ["a"]', "names none"),
        ('[[rule]]\nallow = ["publish"]', "topics: names none"),
        ('[[rule]]\nallow = ["publish"]\ntopics = ["a/#/b"]', "topics: 'a/#/b'"),
        ('[[rule]]\nallow = ["publish"]\ntopics = "a"', "topics: is not a list"),
        ('[[rule]]\nallow = ["publish"]\ntopics = ["a"]\nmax_qos = 3', "max_qos: 3"),
        ('[[rule]]\nallow = ["publish"]\ntopics = ["a"]\nmax_qos = true', "max_qos: True"),
        ('[[rule]]\ndeny = ["publish"]\ntopics = ["a"]\nmax_qos = 1', "only with `allow`"),
        ('[[rule]]\nallow = ["publish"]\ntopics = ["a"]\nusers = []', "users: is empty"),
        ('[[rule]]\nallow = ["publish"]\ntopics = ["a"]\nuser = ["a"]', "user: unknown"),
        ('[[rule]]\nallow = ["publish"]\ntopics = ["a"]\ngroups = ["a"]', "only with subscribe"),
        ('[[rule]]\nallow = ["subscribe"]\ntopics = ["a"]\ngroups = []', "groups: is empty"),
        ('[[rule]]\nallow = ["subscribe"]\ntopics = ["a"]\ngroups = ["a/b"]', "is no share name"),
    ],
)
def test_permissions_file_errors_name_the_fault(text: str, complaint: str) -> None:
    with pytest.raises(AuthError) as raised:
        parse_permissions(tomllib.loads(text))
    assert complaint in str(raised.value)
