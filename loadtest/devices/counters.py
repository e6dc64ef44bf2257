"""What the devices of a group have done."""

from typing import TypedDict


class Counters(TypedDict):
    """Messages; `refused`: acknowledged with an error, `repeated`: came with DUP, `retained`: with RETAIN."""

    sent: int
    acked: int
    refused: int
    delivered: int
    retained: int
    repeated: int
    bytes_in: int
    bytes_out: int
