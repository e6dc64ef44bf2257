"""Plots a replay of scaling."""

from __future__ import annotations

from itertools import groupby

from matplotlib.figure import Figure

from loadtest.model.scaling import Moment, ScalingReplay
from loadtest.report.svg import as_svg

FIGURE_INCHES = (8.6, 4.6)
POINTS = 400


def drawn(replay: ScalingReplay, title: str) -> str:
    """An SVG: the load above; the gateways and the busiest of them below. `title`: which load, and if it is made."""
    moments = _fewer(replay.moments)
    hours = [moment.at_s / 3600 for moment in moments]
    figure = Figure(figsize=FIGURE_INCHES, layout="constrained")
    figure.suptitle(title)
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(hours, [moment.connections / 1000 for moment in moments], label="connections (thousands)")
    above.plot(hours, [moment.messages / 1000 for moment in moments], label="messages/s (thousands)")
    below.step(hours, [moment.ready for moment in moments], where="post", label="gateways that are ready")
    below.plot(hours, [100 * moment.fullest for moment in moments], label="busiest gateway (% of what it can)")
    below.set(xlabel="hours")
    for axes in (above, below):
        axes.set_ylim(0, None)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return as_svg(figure)


def _fewer(moments: list[Moment]) -> list[Moment]:
    """From each part the moment with the busiest gateway, so that no peak is lost."""
    each = max(1, len(moments) // POINTS)
    parts = groupby(moments, lambda moment: moment.at_s // each)
    return [max(part, key=lambda moment: moment.fullest) for _, part in parts]
