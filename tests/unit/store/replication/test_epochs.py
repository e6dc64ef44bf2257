"""What bears an epoch outside the log."""

import pytest

from store.replication.epochs import HighestEpoch, serial_in_epoch


def test_a_serial_has_the_epoch_above_the_number() -> None:
    assert serial_in_epoch(0, 1_700_000_000_000_000) == 1_700_000_000_000_000
    assert serial_in_epoch(3, 5) == 3 << 52 | 5
    assert serial_in_epoch(2048, 5) == 5
    assert serial_in_epoch(2047, (1 << 52) - 1) == (1 << 63) - 1
    with pytest.raises(ValueError, match="more than 52 bits"):
        serial_in_epoch(1, 1 << 52)


def test_a_lower_epoch_is_refused() -> None:
    known = HighestEpoch()
    assert [known.admits(epoch) for epoch in (1, 3, 2, 3, 4)] == [True, True, False, True, True]
