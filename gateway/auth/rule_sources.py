"""The rules of a client as data again, as a token has them, so that another process can read them."""

from __future__ import annotations

from typing import Any

from gateway.auth.name_patterns import STAR, NamePattern
from gateway.auth.permissions import ACTIONS, MAX_QOS, REFUSED, Rule
from gateway.auth.topic_patterns import Pattern


def source_of(rule: Rule) -> dict[str, Any]:
    """The data from which parse_rules() makes this rule."""
    names = [name for name, action in ACTIONS.items() if action & rule.actions]
    source: dict[str, Any] = {"topics": [_filter(pattern) for pattern in rule.topics]}
    if rule.max_qos == REFUSED:
        source["deny"] = names
    else:
        source["allow"] = names
    if rule.max_qos not in (REFUSED, MAX_QOS):
        source["max_qos"] = rule.max_qos
    for key, pattern in (("users", rule.users), ("clients", rule.clients), ("namespaces", rule.namespaces)):
        if pattern is not None:
            source[key] = _names(pattern)
    if rule.groups is not None:
        source["groups"] = list(rule.groups)
    return source


def _filter(pattern: Pattern) -> str:
    return "/".join((*pattern.levels, "#") if pattern.is_open else pattern.levels)


def _names(pattern: NamePattern) -> list[str]:
    return [*sorted(pattern.names), *(STAR.join(glob.pieces) for glob in pattern.globs)]
