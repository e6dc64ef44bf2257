"""The counters of a group of devices."""

from typing import TypedDict


class Counters(TypedDict):
    """Numbers of messages; `refused`: acknowledged with an error; `repeated`: received with DUP; `retained`: with
    RETAIN.
    """

    sent: int
    acked: int
    refused: int
    delivered: int
    retained: int
    repeated: int
    bytes_in: int
    bytes_out: int
