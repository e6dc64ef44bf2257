"""What a forecast beside the reaction saves and risks, on days that are made, not recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from loadtest.model.autoscaler import Pod, ScalingRules
from loadtest.model.forecast import FORECASTS, forecast_of
from loadtest.model.made_days import LAST_DAYS, made_days
from loadtest.model.needs import Costs
from loadtest.model.scaling import FORECAST, MEASURED, ScalingReplay, replay

MADE = "These days are made, not recorded: they show how the rules work, not what they save at a site."


class ForecastRow(NamedTuple):
    """One day, replayed."""

    day: str
    scaled_by: str
    gateway_hours: float
    short_s: int
    """Seconds in which a gateway had more load than it can take."""
    fullest: float
    turns: int


def forecast_rows(
    by: ScalingRules,
    costs: Costs,
    pod: Pod,
    fan_out: float = 1,
    told: Callable[[str, float], object] = lambda _, __: None,
    days_of: Sequence[str] = tuple(LAST_DAYS),
) -> Iterator[ForecastRow]:
    """Each day with the reaction alone, and with each forecast beside it. Raises LoadTestError.

    The target of a forecast is that of the connections, unless the rules have another. `told`: what goes on, and how
    much of all is done (0 to 1); `days_of`: keys of LAST_DAYS.
    """
    targets = {FORECAST: by.targets[MEASURED], **by.targets} if MEASURED in by.targets else by.targets
    asked = [(day, name) for day in days_of for name in FORECASTS]
    for number, (day, name) in enumerate(asked):
        told(f"{day}: {name}", number / len(asked))
        days = made_days(day)
        found = replay(days.day, by._replace(targets=targets), costs, pod, fan_out, forecast_of(name, days))
        yield _row(day, name, found)


def _row(day: str, name: str, found: ScalingReplay) -> ForecastRow:
    return ForecastRow(day, name, found.gateway_hours, found.saturated_s, found.fullest, found.turns)


def as_markdown(rows: list[ForecastRow]) -> str:
    lines = [
        MADE,
        "",
        "| day (made) | scaled by | gateway-hours | under capacity | busiest gateway, of what it can | turned round |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.day} | {row.scaled_by} | {row.gateway_hours:.1f} | {row.short_s} s | {row.fullest:.0%} | {row.turns} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
