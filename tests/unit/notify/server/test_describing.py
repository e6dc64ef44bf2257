"""Questions to a gateway about itself and its clients end after a second, with its connection, or when answered."""

from __future__ import annotations

from notify.api import Told
from notify.server.describing import MOST_ASKED, Descriptions
from store.wire import messages as wire
from store.wire.handshake import DESCRIBING_VERSION, VERSIONS
from store.wire.messages import Hello, Role
from store.wire.operator_messages import (
    ClientDetails,
    Describe,
    Described,
    FiguresTold,
    GatewayReport,
    TellFigures,
)

DETAILS = ClientDetails(5, 60, True, False, 1, 0, 64, 0, 0, 0, [])
REPORT = GatewayReport("1", 0, "", [("penstock_connections", {}, 3.0)], None)


class Asked:
    """A Line that keeps the questions."""

    def __init__(self) -> None:
        self.questions: list[Describe | TellFigures] = []
        self.now_s = 10.0
        self.told_so: list[tuple[str, object]] = []
        self.descriptions = Descriptions(lambda: self.now_s)
        self.descriptions.met(Hello(list(VERSIONS), Role.GATEWAY, "gw"))

    def wake(self) -> None: ...

    def tell_taken_over(self, client_id: str) -> None: ...

    def close(self, reason: str) -> None: ...

    def told(self, message: Told | wire.Judge | Describe | TellFigures) -> None:
        assert isinstance(message, Describe | TellFigures)
        self.questions.append(message)

    def describe(self, name: str) -> None:
        self.descriptions.describe(self, name, lambda details: self.told_so.append((name, details)))

    def report(self, after: int) -> None:
        self.descriptions.report(self, after, lambda report: self.told_so.append((str(after), report)))

    def take_told(self) -> list[tuple[str, object]]:
        told, self.told_so = self.told_so, []
        return told


def test_how_questions_end() -> None:
    asked = Asked()
    for name, now_s in (("a", 10.0), ("b", 10.5), ("c", 10.6)):
        asked.now_s = now_s
        asked.describe(name)
    first, second, _ = asked.questions
    assert isinstance(first, Describe)
    assert (first.client_id, second.number - first.number) == ("a", 1)
    for number in (second.number, second.number, 0):
        asked.descriptions.answered(Described(number, DETAILS))
    assert asked.take_told() == [("b", DETAILS)]
    for now_s, told in ((10.9, []), (11.1, [("a", None)])):
        asked.now_s = now_s
        asked.descriptions.tick()
        assert asked.take_told() == told
    asked.descriptions.lost()
    assert asked.take_told() == [("c", None)]


def test_waiting_questions_to_a_gateway_are_bounded() -> None:
    asked = Asked()
    for number in range(MOST_ASKED):
        asked.describe(str(number))
    assert len(asked.questions) == MOST_ASKED
    asked.describe("one more")
    assert asked.take_told() == [("one more", None)]
    asked.now_s = 20.0
    asked.descriptions.tick()
    assert len(asked.take_told()) == MOST_ASKED


def test_a_gateway_tells_its_figures() -> None:
    asked = Asked()
    asked.report(7)
    asked.report(8)
    (first, second) = asked.questions
    assert isinstance(first, TellFigures)
    assert first.after == 7
    asked.descriptions.answered(FiguresTold(first.number, REPORT))
    asked.descriptions.answered(Described(second.number, DETAILS))  # which is no answer to that
    assert asked.take_told() == [("7", REPORT), ("8", None)]


def test_peers_that_cannot_describe_clients_are_not_asked() -> None:
    asked = Asked()
    for role, versions in ((Role.GATEWAY, [DESCRIBING_VERSION]), (Role.CLIENT, VERSIONS), (Role.OPERATOR, VERSIONS)):
        asked.descriptions.met(Hello(list(versions), role, "peer"))
        asked.report(0)
        assert (asked.questions, asked.take_told()) == ([], [("0", None)])
    asked.descriptions.report(None, 0, lambda report: asked.told_so.append(("away", report)))
    assert asked.take_told() == [("away", None)]
