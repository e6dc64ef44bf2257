"""Dividing what is ready among the consumers that wait for it."""

from hypothesis import given
from hypothesis import strategies as st

from notify.local.polls import divide

COUNTS = st.integers(0, 50)


@given(st.integers(0, 300), st.lists(st.tuples(COUNTS, COUNTS), max_size=8))
def test_shares_leave_all_with_as_much_as_each_other(number: int, asked: list[tuple[int, int]]) -> None:
    most, has = [most for most, _ in asked], [has for _, has in asked]
    shares = divide(number, most, has)
    assert sum(shares) == min(number, sum(most))
    assert all(0 <= share <= limit for share, limit in zip(shares, most, strict=True))
    after = [had + share for had, share in zip(has, shares, strict=True)]
    highest = max((level for level, share in zip(after, shares, strict=True) if share), default=0)
    could_take = [level for level, share, limit in zip(after, shares, most, strict=True) if share < limit]
    assert all(level >= highest - 1 for level in could_take)
