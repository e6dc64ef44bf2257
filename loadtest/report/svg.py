"""Figures as SVG text."""

from __future__ import annotations

import io

import matplotlib
from matplotlib.figure import Figure


def as_svg(figure: Figure) -> str:
    """The SVG of a figure; the same figure gives the same text."""
    matplotlib.rcParams["svg.hashsalt"] = "penstock"
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()
