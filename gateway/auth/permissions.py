"""Topic permissions: rules from top to bottom; the first that applies to a client, an action and a topic decides.

    default = "deny"                        # where no rule applies; "deny" if absent

    [[rule]]
    users = ["alice", "sensor-*"]           # and/or clients = [...]; * stands for any characters; absent: all
    namespaces = ["acme"]                   # "" is the default one; absent: all
    allow = ["publish", "retain"]           # or deny = [...]; of the actions below
    topics = ["devices/%u/#"]               # topic filters; %u is the user's name, %c the client identifier
    groups = ["billing", "%u-*"]            # of $share; if any rule has groups, joining one needs a rule that names it
    max_qos = 1                             # only with allow; 2 if absent

The actions are publish, retain, subscribe, replay, read_log, hold_log and admin. A retained PUBLISH needs both
`publish` and `retain`, reading history both `subscribe` and `replay`. A rule allows a subscription only if its filter
covers the whole subscription; it denies one if any topic matches both. The topic after `$dead/GROUP/` is authorized as
well: a dead letter is a message of the topic named there. Reading a store's log itself, with the messages of all
namespaces, needs `read_log` of `#` besides, having retention wait for that `hold_log`, and seeing and touching what
other clients have `admin` of `#`: no default allows these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cached_property
from typing import Any

from gateway.auth.errors import AuthError
from gateway.auth.name_patterns import NamePattern
from gateway.auth.placeholders import FilledLevels, fill
from gateway.auth.rule_index import RuleIndex
from gateway.auth.topic_patterns import Pattern, WantedTopic
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.topics import validate_topic_filter

MAX_QOS = 2
REFUSED = -1
"""In place of the highest allowed QoS."""
UNANSWERED = -2
"""As REFUSED, because the hook gave no answer: permissions given before are not withdrawn for that."""
MOST_RULES = 100_000
"""Rules in a permissions file."""
ENTRIES_PER_RULE = 4
"""Topics and names that the rules of a token or an answer may have in all, for each rule that they may have."""


class Action(Flag):
    PUBLISH = auto()
    RETAIN = auto()
    SUBSCRIBE = auto()
    REPLAY = auto()
    READ_LOG = auto()
    ADMIN = auto()
    HOLD_LOG = auto()


ACTIONS = {action.name.lower(): action for action in Action if action.name}
OF_THE_WHOLE = Action.READ_LOG | Action.HOLD_LOG | Action.ADMIN
"""Not of some topics: a rule that allows one has to name `#`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: the actions that it allows or denies, and the clients and topics that it applies to."""

    actions: Action
    max_qos: int  # REFUSED: this rule denies
    bits: int  # of `actions`: a test of a Flag costs more than the rest of a decision
    topics: tuple[Pattern, ...]
    users: NamePattern | None
    clients: NamePattern | None
    namespaces: NamePattern | None = None
    groups: tuple[str, ...] | None = None  # as written in the file
    is_for_all: bool = False  # no users, clients or namespaces: a call for each rule costs more than the rest

    @property
    def names_client_id(self) -> bool:
        """Whether the rule depends on the client identifier, by `%c`."""
        levels = [level for pattern in self.topics for level in pattern.levels]
        return any("%c" in text for text in (*levels, *(self.groups or ())))

    def is_for(self, username: str, client_id: str, namespace: str = "") -> bool:
        if self.namespaces is not None and not self.namespaces.matches(namespace):
            return False
        if self.users is not None and (not username or not self.users.matches(username)):
            return False
        return self.clients is None or self.clients.matches(client_id)

    def speaks_of(self, wanted: WantedTopic, names: FilledLevels) -> bool:
        judge = wanted.is_met_by if self.max_qos == REFUSED else wanted.is_covered_by
        for pattern in self.topics:  # noqa: SIM110 - any() would take as long as most patterns do
            if judge(pattern, names):
                return True
        return False

    def has_group(self, group: str | None, username: str, client_id: str) -> bool:
        """Whether the rule applies to joining a group; None: to a subscription that is not shared."""
        denies = self.max_qos == REFUSED
        if self.groups is None:
            return denies or group is None
        if group is None:
            return not denies
        return any(_is_group(pattern, group, username, client_id, denies) for pattern in self.groups)


def _is_group(pattern: str, group: str, username: str, client_id: str, denies: bool) -> bool:
    """Whether a pattern matches a share name. A pattern with an empty name allows nothing, or denies everything."""
    if any(mark in pattern and not name for mark, name in (("%c", client_id), ("%u", username))):
        return denies
    first, *others = (fill(piece, username, client_id) for piece in pattern.split("*"))
    if not others:
        return group == first
    last = others.pop()
    if not group.startswith(first) or not group.endswith(last):
        return False
    at, end = len(first), len(group) - len(last)
    for piece in others:
        at = group.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return at <= end


def decide(
    rules: Iterable[Rule],
    username: str,
    client_id: str,
    action: Action,
    topic: str,
    namespace: str = "",
    group: str | None = None,
) -> int | None:
    """The highest QoS at which a client may do an action with a topic (filter), or REFUSED; None: no rule applies.

    `group`: of a shared subscription, if rules name groups; see name_groups().
    """
    wanted, bits, names = WantedTopic.parse(topic), action.value, FilledLevels(username, client_id)
    for rule in rules:
        if (
            bits & rule.bits
            and (rule.is_for_all or rule.is_for(username, client_id, namespace))
            and ((group is None and rule.groups is None) or rule.has_group(group, username, client_id))
            and rule.speaks_of(wanted, names)
        ):
            return rule.max_qos
    return None


def name_groups(rules: Iterable[Rule]) -> bool:
    """Whether any of these rules names groups, so that joining one needs a rule that names it."""
    return any(rule.groups is not None for rule in rules)


@dataclass(frozen=True)
class Permissions:
    """A parsed permissions file. Rules that name their users or clients are looked up by name."""

    rules: tuple[Rule, ...] = ()
    default: int = REFUSED
    names_groups: bool = False
    names_client_id: bool = False

    @cached_property
    def index(self) -> RuleIndex:
        """Raises AuthError if a decision would have to look at too many rules."""
        return RuleIndex([(rule.users, rule.clients, rule.namespaces, len(rule.topics)) for rule in self.rules])

    @cached_property
    def _for_everybody(self) -> tuple[Rule, ...]:
        """The same tuple for all clients without rules of their own."""
        return tuple(self.rules[number] for number in self.index.for_everybody)

    def rules_for(self, username: str, client_id: str, namespace: str = "") -> tuple[Rule, ...]:
        found = self.index.find(username, client_id, namespace)
        if found is self.index.for_everybody:
            return self._for_everybody
        named = (self.rules[number] for number in found)
        return tuple(rule for rule in named if rule.is_for(username, client_id, namespace))


def parse_permissions(document: Mapping[str, Any]) -> Permissions:
    """Parse a permissions file, read as TOML. Raises AuthError, whose message begins with the wrong rule."""
    unknown = sorted(document.keys() - {"default", "rule"})
    if unknown:
        raise AuthError(f"{unknown[0]}: unknown; a permissions file has `default` and [[rule]]")
    default = document.get("default", "deny")
    if default not in ("allow", "deny"):
        raise AuthError(f'default: {default!r} is neither "allow" nor "deny"')
    rules = document.get("rule", [])
    if not isinstance(rules, list):
        raise AuthError("rule: is a table; write [[rule]] with two brackets")
    parsed = parse_rules(rules, MOST_RULES)
    names_client_id = any(rule.names_client_id for rule in parsed)
    most_qos = MAX_QOS if default == "allow" else REFUSED
    permissions = Permissions(parsed, most_qos, name_groups(parsed), names_client_id)
    _ = permissions.index  # now, so that its errors are raised here
    return permissions


def check_client_ids(permissions: Permissions, are_bound: bool) -> None:
    """Raise RuleError if a rule uses `%c` although each client may take any other client's identifier."""
    for number, rule in enumerate(permissions.rules, 1):
        if rule.names_client_id and not are_bound:
            raise RuleError(
                number,
                "%c is the client identifier, and each client may have any, so one could pose as another; write %u, "
                'the name of the user, or bind client identifiers to users with auth.client_ids = "%u-*"',
            )


def parse_rules(rules: object, most: int) -> tuple[Rule, ...]:
    """Parse rules of a permissions file, a token or an answer, at most `most`. Raises AuthError."""
    if not isinstance(rules, list) or len(rules) > most:
        raise AuthError(f"rules are a list of at most {most}")
    return tuple(_parse_rule(number, rule) for number, rule in enumerate(rules, 1))


def parse_own_rules(rules: object, most: int) -> tuple[Rule, ...]:
    """Parse rules that a client brings, in a token or an answer: in the loop, so only a few. Raises AuthError."""
    if isinstance(rules, list):
        lists = (each for rule in rules[:most] if isinstance(rule, dict) for each in rule.values())
        if sum(len(each) for each in lists if isinstance(each, list)) > most * ENTRIES_PER_RULE:
            raise AuthError(f"rules have at most {most * ENTRIES_PER_RULE} topics and names together")
    return parse_rules(rules, most)


KEYS = {"users", "clients", "namespaces", "allow", "deny", "topics", "groups", "max_qos"}


def _parse_rule(number: int, rule: object) -> Rule:
    try:
        if not isinstance(rule, dict):
            raise AuthError("is not a table")
        unknown = sorted(rule.keys() - KEYS)
        if unknown:
            raise AuthError(f"{unknown[0]}: unknown; a rule has {', '.join(sorted(KEYS))}")
        if ("allow" in rule) == ("deny" in rule):
            raise AuthError("needs either `allow` or `deny`")
        denies = "deny" in rule
        actions = _actions("deny" if denies else "allow", rule["deny" if denies else "allow"])
        max_qos = rule.get("max_qos", MAX_QOS)
        if type(max_qos) is not int or max_qos not in (0, 1, 2):
            raise AuthError(f"max_qos: {max_qos!r} is not 0, 1 or 2")
        if denies and "max_qos" in rule:
            raise AuthError("max_qos: only with `allow`")
        topics = tuple(Pattern.parse(topic) for topic in _texts(rule, "topics"))
        if not topics:
            raise AuthError("topics: names none")
        if not denies and actions & OF_THE_WHOLE and "#" not in rule["topics"]:
            (name, *_) = (name for name, action in ACTIONS.items() if actions & action & OF_THE_WHOLE)
            raise AuthError(f'{name}: is for the store as a whole; topics has to have "#"')
        users, clients, namespaces = (_names(rule, key) for key in ("users", "clients", "namespaces"))
        groups, most_qos = _groups(rule, actions), REFUSED if denies else max_qos
        is_for_all = users is None and clients is None and namespaces is None
        return Rule(actions, most_qos, actions.value, topics, users, clients, namespaces, groups, is_for_all)
    except AuthError as error:
        raise RuleError(number, str(error)) from None


class RuleError(AuthError):
    """A rule is wrong; `number` counts from 1."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"rule {number}: {message}")
        self.number = number


def _actions(key: str, names: object) -> Action:
    found = Action(0)
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or name not in ACTIONS:
            raise AuthError(f"{key}: {name!r} is not one of {', '.join(ACTIONS)}")
        found |= ACTIONS[name]
    if not found:
        raise AuthError(f"{key}: names none of {', '.join(ACTIONS)}")
    return found


def _texts(rule: Mapping[str, Any], key: str) -> Iterator[str]:
    texts = rule.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise AuthError(f"{key}: is not a list of strings")
    for text in texts:
        if key == "topics":
            try:
                validate_topic_filter(text)
            except ProtocolError as error:
                raise AuthError(f"topics: {text!r}: {error.message}") from None
        yield text


def _groups(rule: Mapping[str, Any], actions: Action) -> tuple[str, ...] | None:
    if "groups" not in rule:
        return None
    groups = tuple(_texts(rule, "groups"))
    if not groups:
        raise AuthError('groups: is empty; leave it out, or write ["*"] to mean all')
    if not actions & (Action.SUBSCRIBE | Action.REPLAY):
        raise AuthError("groups: only with subscribe or replay")
    for group in groups:
        if not group or set(group) & set("/+#"):
            raise AuthError(f"groups: {group!r} is no share name, which is not empty and has no /, + or #")
    return groups


def _names(rule: Mapping[str, Any], key: str) -> NamePattern | None:
    """One pattern for all names under a key; None if the rule does not have the key."""
    if key not in rule:
        return None
    names = list(_texts(rule, key))
    if not names:
        raise AuthError(f"{key}: is empty, so the rule would match no client; leave it out to match all")
    return NamePattern.of(names)
