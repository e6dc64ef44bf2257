"""Epochs in names and numbers outside the log, so that nothing of an earlier leader is taken for a later one's."""

from __future__ import annotations

SERIAL_BITS = 52
_SERIAL_EPOCHS = 1 << (63 - SERIAL_BITS)  # positive in 64 bits with a sign, which most languages have


def serial_in_epoch(epoch: int, number: int) -> int:
    """The serial of a group's lease: the epoch in bits 52 to 62 above the number that the leader gives.

    To be compared for equality only: after 2,048 epochs these bits begin again. Text in HTTP, since a number there has
    53 bits. Raises ValueError if the number takes more than 52 bits.
    """
    if not 0 <= number < 1 << SERIAL_BITS:
        raise ValueError(f"{number} takes more than {SERIAL_BITS} bits")
    return epoch % _SERIAL_EPOCHS << SERIAL_BITS | number


def number_of_serial(serial: int) -> int:
    """The number that the leader gave, without the epoch."""
    return serial & ((1 << SERIAL_BITS) - 1)


def is_same_epoch(serial: int, other: int) -> bool:
    """Whether both were given in one epoch, so that the later one has the higher number."""
    return serial >> SERIAL_BITS == other >> SERIAL_BITS


class HighestEpoch:
    """The highest epoch that a user of the cluster was told, by any store."""

    def __init__(self) -> None:
        self.epoch = 0

    def admits(self, epoch: int) -> bool:
        """Whether a store that leads in this epoch may be believed; a lower one led before."""
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        return True
