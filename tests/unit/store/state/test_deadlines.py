"""Deadlines: what is due is called once, and what was replaced takes no memory."""

import tracemalloc

from store.state.deadlines import Deadlines


def test_due_deadlines_are_called_oldest_first() -> None:
    deadlines, called = Deadlines(), list[str]()
    for name, at_s in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("never", 9.0)):
        deadlines.set(name, at_s, lambda name=name: called.append(name))  # type: ignore[misc]
    deadlines.run(0.5)
    assert called == []
    deadlines.run(3.0)
    deadlines.run(3.0)
    assert called == ["a", "b", "c"]
    assert len(deadlines) == 1


def test_a_deadline_is_replaced_or_cancelled() -> None:
    deadlines, called = Deadlines(), list[int]()
    deadlines.set("a", 1, lambda: called.append(1))
    deadlines.set("a", 3, lambda: called.append(2))
    deadlines.run(2)
    assert called == []
    deadlines.run(3)
    assert called == [2]
    deadlines.set("a", 5, lambda: called.append(3))
    assert deadlines.cancel("a")
    assert not deadlines.cancel("a")
    deadlines.run(9)
    assert called == [2]


def test_an_action_may_set_another_one() -> None:
    deadlines, called = Deadlines(), list[int]()
    deadlines.set("a", 1, lambda: deadlines.set("a", 2, lambda: called.append(2)))
    deadlines.run(1)
    assert called == []
    deadlines.run(2)
    assert called == [2]


def test_clients_that_come_and_go_take_no_memory() -> None:
    """Each leaves a deadline a week ahead and cancels it on coming back."""
    deadlines = Deadlines()
    tracemalloc.start()
    for i in range(50_000):
        deadlines.set("session", 600_000 + i, lambda: None)
        deadlines.cancel("session")
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes < 1_000_000
