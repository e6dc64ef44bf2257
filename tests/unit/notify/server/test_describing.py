"""Questions to a gateway about its clients end after a second, with its connection, or with their answers."""

from __future__ import annotations

from notify.server.describing import MOST_ASKED, Descriptions
from store.wire.operator_messages import ClientDetails, Describe, Described

DETAILS = ClientDetails(5, 60, True, False, 1, 0, 64, 0, 0, 0, [])


def test_how_questions_end() -> None:
    told: list[tuple[str, ClientDetails | None]] = []
    descriptions = Descriptions()

    def ask(name: str, now_s: float) -> Describe | None:
        return descriptions.ask(name, lambda details: told.append((name, details)), now_s)

    first, second, third = (ask(name, now_s) for name, now_s in (("a", 10.0), ("b", 10.5), ("c", 10.6)))
    assert isinstance(first, Describe)
    assert isinstance(second, Describe)
    assert third is not None
    assert (first.client_id, second.number - first.number) == ("a", 1)
    descriptions.answered(Described(second.number, DETAILS))
    descriptions.answered(Described(second.number, DETAILS))
    descriptions.answered(Described(0, DETAILS))
    assert told == [("b", DETAILS)]
    descriptions.tick(10.9)
    assert told[1:] == []
    descriptions.tick(11.1)
    assert told[1:] == [("a", None)]
    descriptions.lost()
    assert told[2:] == [("c", None)]
    for number in range(MOST_ASKED):
        assert ask(str(number), 20.0) is not None
    assert ask("one more", 20.0) is None
    assert told[3:] == [("one more", None)]
    descriptions.tick(30.0)
    assert len(told) == 4 + MOST_ASKED
