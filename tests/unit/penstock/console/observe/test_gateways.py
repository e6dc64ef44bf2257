"""Which gateways the console lists: those that answer, that do not, and that are away with their last report."""

from __future__ import annotations

from penstock.console.observe.figures import Figures
from penstock.console.observe.gateways import AWAY_KEPT_S, MOST_KEPT, GatewayPresence, Gateways
from penstock.console.observe.look import CONNECTIONS, SERVER, ProcessLook, ServerLook
from store.wire.operator_messages import ServerShown


def looked(at_s: float, *names: str, silent: tuple[str, ...] = (), clients: float = 3) -> ServerLook:
    here = ProcessLook(Figures([(CONNECTIONS, {}, clients)]))
    processes = {SERVER: ProcessLook(Figures([])), **dict.fromkeys(names, here)}
    return ServerLook(at_s, ServerShown("1", 0, "{}", "", "", [], None), processes, silent)


def test_a_gateway_that_is_away_is_shown_with_its_last_report() -> None:
    gateways = Gateways(lambda at_s: round(at_s * 1_000))
    gateways.seen(looked(10, "a", "b"), {})
    gateways.seen(looked(20, "b", silent=("a", "old"), clients=4), {})
    shown = [(state.name, state.presence, state.clients, state.seen_ms) for state in gateways.all()]
    assert shown == [
        ("b", GatewayPresence.HERE, 4, 20_000),
        ("a", GatewayPresence.SILENT, 3, 10_000),
        ("old", GatewayPresence.SILENT, None, 20_000),
    ]
    gateways.seen(looked(30, "b"), {})
    assert {state.name: state.presence for state in gateways.all()} == {
        "b": GatewayPresence.HERE,
        "a": GatewayPresence.AWAY,
        "old": GatewayPresence.AWAY,
    }
    gateways.seen(looked(40, "a", "b"), {})
    assert [state.presence for state in gateways.all()][:2] == [GatewayPresence.HERE] * 2
    gateways.seen(looked(50 + AWAY_KEPT_S, "b"), {})
    assert [state.name for state in gateways.all()] == ["b"]


def test_listed_gateways_are_bounded() -> None:
    gateways = Gateways(lambda at_s: round(at_s * 1_000))
    for number in range(2 * MOST_KEPT):
        gateways.seen(looked(number, f"g{number}"), {})
    assert len(gateways.all()) == MOST_KEPT
    assert gateways.all()[0].name == f"g{2 * MOST_KEPT - 1}"
