"""A consumer's state at the store, on one connection."""

import pytest

from penstock.sdk.enrolment import CHANGES, AtStore, Enrolment


def test_each_state_has_its_changes() -> None:
    assert set(CHANGES) == set(AtStore)
    assert all(after in AtStore and why for changes in CHANGES.values() for after, why in changes.items())


def test_enrolment_asks_for_messages_once_at_a_time() -> None:
    enrolment = Enrolment()
    enrolment.opened(7)
    enrolment.asked()
    assert (enrolment.ref, enrolment.state) == (7, AtStore.ASKED)
    with pytest.raises(AssertionError):
        enrolment.asked()
    enrolment.answered()
    enrolment.asked()


def test_an_answer_that_comes_after_the_connection_ended_changes_nothing() -> None:
    enrolment = Enrolment()
    enrolment.opened(7)
    enrolment.asked()
    enrolment.lost()
    enrolment.lost()
    enrolment.answered()
    assert (enrolment.ref, enrolment.state) == (None, AtStore.ABSENT)
    with pytest.raises(AssertionError):
        enrolment.asked()
    enrolment.opened(8)
    assert (enrolment.ref, enrolment.state) == (8, AtStore.READY)
