"""A consumer's report about its own work, for people to see. It is on the wire and not in the log."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

MOST_ERROR_CHARACTERS = 500

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ConsumerWork(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Counts since the consumer started, and the error that came last.

    `sent`: messages that are where it leads; `failed`: attempts that failed; `dead`: dead letters; `lost`: gone before
    it could take them; `outages`: how often what it leads to, or comes from, was away. `lag`: what waits for it
    elsewhere than in its group (nil: nothing, or it is not known). `away`: that takes or gives nothing now. `error_ms`:
    Unix time in ms of `error`; 0: there was none.
    """

    sent: _Count = 0
    failed: _Count = 0
    dead: _Count = 0
    lost: _Count = 0
    outages: _Count = 0
    lag: _Count | None = None
    away: bool = False
    error: Annotated[str, Meta(max_length=MOST_ERROR_CHARACTERS)] = ""
    error_ms: _Count = 0


def joined_work(works: Iterable[ConsumerWork | None]) -> ConsumerWork | None:
    """Join the reports of several consumers: sums, whether one is held up, and the newest error.

    None: there is none.
    """
    told = [work for work in works if work is not None]
    if len(told) < 2:
        return told[0] if told else None
    newest = max(told, key=lambda work: work.error_ms)
    lags = [work.lag for work in told if work.lag is not None]
    return ConsumerWork(
        sum(work.sent for work in told),
        sum(work.failed for work in told),
        sum(work.dead for work in told),
        sum(work.lost for work in told),
        sum(work.outages for work in told),
        sum(lags) if lags else None,
        any(work.away for work in told),
        newest.error,
        newest.error_ms,
    )
