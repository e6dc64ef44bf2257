"""A store that may not answer for a while, and then may again."""

from __future__ import annotations

from notify.server.lead import WatchedLead


class Lead:
    """What a store's part in its cluster says."""

    why = ""

    def why_not_serving(self) -> str:
        return self.why


def test_a_store_that_leads_again_is_told_so_once() -> None:
    lead = Lead()
    returns: list[None] = []
    watched = WatchedLead(lead, lambda: returns.append(None))
    assert watched.why_not_serving() == ""
    lead.why = "another one leads"
    assert [watched.why_not_serving() for _ in range(2)] == ["another one leads"] * 2
    assert returns == []
    lead.why = ""
    assert [watched.why_not_serving() for _ in range(2)] == ["", ""]
    assert len(returns) == 1
