"""The complaints of the ledger, and the messages that it forgets."""

from __future__ import annotations

import pytest

from loadtest.chaos.ledger import Ledger, SentMessage


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.filters["s"] = {"t/#": 2}
    return ledger


def sent(ledger: Ledger, sequence: int, qos: int = 2, acked: bool = True, topic: str = "t/1") -> SentMessage:
    message = SentMessage("p", topic, qos, sequence)
    ledger.on_sent(message)
    if acked and qos:
        ledger.on_acked(message)
    return message


def test_a_message_that_is_lost(ledger: Ledger) -> None:
    ledger.on_delivered("s", sent(ledger, 1))
    sent(ledger, 2)
    assert not ledger.all_delivered
    assert ["acknowledged, but not delivered" in each for each in ledger.complaints()] == [True]


def test_ledger_allows_loss_of_unacknowledged_and_qos0_messages(ledger: Ledger) -> None:
    sent(ledger, 1, acked=False)
    sent(ledger, 2, qos=0)
    assert ledger.all_delivered
    assert ledger.complaints() == []


@pytest.mark.parametrize(("qos", "is_fault"), [(0, True), (1, False), (2, True)])
def test_a_repetition(ledger: Ledger, qos: int, is_fault: bool) -> None:
    message = sent(ledger, 1, qos)
    ledger.on_delivered("s", message)
    ledger.on_delivered("s", message)
    assert bool(ledger.complaints()) is is_fault


def test_a_message_of_qos_1_to_a_subscriber_at_qos_0_may_come_twice(ledger: Ledger) -> None:
    ledger.filters["s"] = {"t/#": 0}
    message = sent(ledger, 1, qos=1)
    ledger.on_delivered("s", message)
    ledger.on_delivered("s", message)
    assert ledger.complaints() == []


def test_ledger_complains_of_messages_out_of_order(ledger: Ledger) -> None:
    first, second = sent(ledger, 1), sent(ledger, 2)
    ledger.on_delivered("s", second)
    ledger.on_delivered("s", first)
    assert ["out of order" in each for each in ledger.complaints()] == [True]


def test_ledger_allows_another_order_where_the_first_copy_may_be_lost(ledger: Ledger) -> None:
    """At QoS 0 it may be, and its publisher sends a message of QoS 1 again that was not acknowledged."""
    ledger.filters["s"] = {"t/#": 0}
    for qos, is_fault in ((1, False), (0, True)):
        first, second = sent(ledger, 2 * qos + 1, qos), sent(ledger, 2 * qos + 2, qos)
        ledger.on_delivered("s", second)
        ledger.on_delivered("s", first)
        assert bool(ledger.complaints()) is is_fault


def test_topics_and_what_was_refused_have_no_order(ledger: Ledger) -> None:
    first, second, other = sent(ledger, 1, acked=False), sent(ledger, 2), sent(ledger, 3, topic="t/2")
    ledger.on_refused(first)
    for message in (other, second, first):
        ledger.on_delivered("s", message)
    assert ledger.complaints() == []


def test_ledger_complains_of_messages_never_sent(ledger: Ledger) -> None:
    ledger.on_delivered("s", SentMessage("p", "t/1", 1, 1))
    assert ["never sent" in each for each in ledger.complaints()] == [True]


# --- rounds


def test_a_round_is_forgotten(ledger: Ledger) -> None:
    for sequence in range(1, 100):
        ledger.on_delivered("s", sent(ledger, sequence))
    assert ledger.close_round() == []
    assert not ledger.sent | ledger.acked
    assert not ledger.delivered["s"]
    assert ledger.counts == {"sent": 99, "acknowledged": 99, "delivered": 99, "repeated": 0}


def test_a_round_s_faults_are_found_once(ledger: Ledger) -> None:
    sent(ledger, 1)
    assert len(ledger.close_round()) == 1
    assert ledger.close_round() == []


@pytest.mark.parametrize(("qos", "is_fault"), [(1, False), (2, True)])
def test_a_repetition_in_another_round(ledger: Ledger, qos: int, is_fault: bool) -> None:
    message = sent(ledger, 1, qos)
    ledger.on_delivered("s", message)
    ledger.close_round()
    ledger.on_delivered("s", message)
    assert bool(ledger.close_round()) is is_fault
    assert ledger.counts["repeated"] == 1


def test_ledger_allows_a_refused_message_once_in_a_later_round(ledger: Ledger) -> None:
    message = sent(ledger, 1, acked=False)
    ledger.on_refused(message)
    ledger.close_round()
    ledger.on_delivered("s", message)
    assert ledger.close_round() == []
    ledger.on_delivered("s", message)
    assert len(ledger.close_round()) == 1


def test_ledger_knows_which_clients_are_served(ledger: Ledger) -> None:
    old = sent(ledger, 1)
    ledger.mark()
    ledger.on_acked(old)
    ledger.on_delivered("s", old)
    assert not ledger.is_served("p")
    assert not ledger.is_served("s")
    new = sent(ledger, 2)
    assert ledger.is_served("p")
    ledger.on_delivered("s", new)
    assert ledger.is_served("s")
