"""What a move of a group skips and repeats, against a group that really holds its messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.console.store.groups import move_look
from store.state.group_settings import GroupSettings
from store.wire.group_messages import GroupInfo


@given(st.integers(0, 40), st.data())
def test_a_look_is_exact_or_an_upper_bound(end: int, data: st.DataObject) -> None:
    looked_until = data.draw(st.integers(0, end))
    held = data.draw(st.sets(st.integers(0, looked_until - 1))) if looked_until else set()
    in_flight = data.draw(st.integers(0, len(held)))
    target = data.draw(st.integers(0, end))
    acked, lag = min({looked_until, *held}), end - looked_until + len(held)
    info = GroupInfo("billing", "line/#", GroupSettings(), acked, end, lag, in_flight, len(held) - in_flight, 0, 0, [])
    open_ones = held | set(range(looked_until, end))
    skipped = len([each for each in open_ones if each < target])
    repeated = len([each for each in range(target, end) if each not in open_ones])
    look = move_look(info, target)
    if look.is_exact:
        assert (look.skipped, look.repeated) == (skipped, repeated)
    else:
        assert acked < target < looked_until
        assert look.skipped >= skipped
        assert look.repeated >= repeated


def test_an_ordered_group_is_not_exact() -> None:
    info = GroupInfo("billing", "line/#", GroupSettings(partitions=4), 5, 10, 5, 0, 0, 0, 0, [])
    assert not move_look(info, 10).is_exact
