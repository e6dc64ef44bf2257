"""What operators are told of a server: its version and settings, what is wrong, and the figures of its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from notify.facts import ServerFacts
from store.figures import samples
from store.wire.operator_messages import Sample, ServerShown, ShowServer

SAMPLES_AT_ONCE = 2_000
"""Of one answer, so that encoding it takes less than a millisecond."""


def show_server(facts: ServerFacts, request: ShowServer, done: Callable[[ServerShown], None]) -> Iterator[None]:
    """`done` gets the answer. Figures are read a step at a time, and told some thousand at a time."""
    found: list[Sample] = []
    number = 0
    end = request.after + SAMPLES_AT_ONCE
    for step in facts.readings():
        yield
        for reading in step:
            for name, labels, value in samples(reading):
                if request.after <= number < end:
                    found.append((name, labels, value))
                number += 1
            yield
    is_first = not request.after
    done(
        ServerShown(
            facts.version,
            facts.started_ms,
            facts.settings if is_first else "",
            facts.health(),
            facts.unready(),
            found,
            end if number > end else None,
        )
    )
