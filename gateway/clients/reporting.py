"""A gateway's report to the store, for operators: the figures of its /metrics, some thousand at a time."""

from __future__ import annotations

from itertools import islice

from notify.facts import ServerFacts
from store.figures import samples
from store.wire.operator_messages import MOST_SAMPLES, GatewayReport, GatewaySample

MOST_TEXT = 255
"""Characters of a name or a label's value; figures with longer ones are left out."""
MOST_VALUE = 2.0**53


def report(facts: ServerFacts, after: int) -> GatewayReport:
    """One page of the gateway's figures, without the first `after`."""
    found = (sample for step in facts.readings() for reading in step for sample in samples(reading))
    shown = list(islice(filter(_can_be_told, found), after, after + MOST_SAMPLES + 1))
    end = after + MOST_SAMPLES if len(shown) > MOST_SAMPLES else None
    return GatewayReport(facts.version, facts.started_ms, facts.unready(), shown[:MOST_SAMPLES], end)


def _can_be_told(sample: GatewaySample) -> bool:
    """True if the store accepts a figure: its value is a count, time or size, and its texts are short."""
    name, labels, value = sample
    return 0 <= value <= MOST_VALUE and all(len(text) <= MOST_TEXT for text in (name, *labels.values()))
