"""What a client's token allowed it is allowed in the next process, however many topics a rule names."""

from __future__ import annotations

from gateway.auth.identity import Identity
from gateway.auth.permissions import parse_own_rules
from gateway.handover.connections import handed_identity, taken_identity


def test_a_rule_of_several_may_have_more_than_its_share_of_names() -> None:
    wide = {"allow": ["publish", "subscribe"], "topics": [f"line/{number}" for number in range(6)]}
    narrow = {"deny": ["publish"], "topics": ["#"]}
    rules = parse_own_rules([wide, narrow], 4)
    for given in (rules, rules[:1]):
        assert taken_identity(handed_identity(Identity("ann", given))).rules == given
