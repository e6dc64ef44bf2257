"""Figures as files that people look at."""

from __future__ import annotations

import io

import matplotlib
from matplotlib.figure import Figure


def as_svg(figure: Figure) -> str:
    """The same figure is the same text."""
    matplotlib.rcParams["svg.hashsalt"] = "penstock"
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()
