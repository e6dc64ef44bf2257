"""`penstock bench`: put simulated devices on a broker, and measure."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from loadtest.brokers.kinds import BrokerKind
    from loadtest.report.results import Results, Row

EXTRA = ("hdrh", "matplotlib", "psutil", "yaml")

bench = typer.Typer(
    help="Measure a broker under load.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)

Repeats = Annotated[
    int, typer.Option("--repeats", metavar="N", min=1, max=1_000, help="Number of runs; the output shows medians.")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="File for all results.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="File for a page with plots.")]


@bench.callback()
def end_in_order() -> None:
    """Measure a broker under load."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that brokers that were started end


@bench.command("list")
def list_workloads() -> None:
    """List the built-in workloads. Your own workload is a TOML file of the same form."""
    from loadtest.workloads.workload import load, shipped

    for name in shipped():
        typer.echo(f"{name:22} {' '.join(load(name).text.split())}")


@bench.command("run")
def run_workloads(
    workloads: Annotated[
        list[str], typer.Argument(metavar="WORKLOAD...", help="Names of `bench list`, or TOML files.")
    ],
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="The broker: mqtt://, mqtts://, ws:// or wss://.")
    ] = "mqtt://127.0.0.1:1883",
    repeats: Repeats = 3,
    pid: Annotated[
        list[int] | None, typer.Option("--pid", metavar="PID", help="Process of the broker, if bench cannot find it.")
    ] = None,
    ca: Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="Certificates (PEM) to trust.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept any certificate.")] = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """Run workloads on a running broker."""
    _check_extra()
    from loadtest.devices.address import BrokerAddress
    from loadtest.devices.run import run
    from loadtest.report.results import Results, Row, Subject
    from loadtest.resources import listening_at
    from loadtest.workloads.workload import load
    from penstock.commands.progress import shown

    address = BrokerAddress.parse(url, ca, not insecure)
    results = Results.begin()
    subject = Subject(name=url, url=url)
    asked = [load(name) for name in workloads]
    for workload in asked:
        row = Row(workload, subject, [])
        results.rows.append(row)
        for number in range(repeats):
            with shown(f"{workload.name} {number + 1}/{repeats}") as progress:
                row.runs.append(run(workload, address, pid or listening_at(address.port), progress))
        typer.echo(_line(row))
    _write(results, json, html)


@bench.command("compare")
def compare_brokers(
    workloads: Annotated[
        list[str], typer.Argument(metavar="WORKLOAD...", help="Names of `bench list`, or TOML files.")
    ],
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="NAME,...", help="Brokers to start; default: all installed ones.")
    ] = "",
    repeats: Repeats = 3,
    worth: Annotated[bool, typer.Option(help="Kill each broker first, to see which messages survive.")] = True,
    pin: Annotated[bool, typer.Option(help="Pin brokers to one core and the load to another.")] = True,
    json: Json = None,
    html: Html = None,
) -> None:
    """Start brokers on this machine and run workloads on them in turn."""
    _check_extra()
    from loadtest.brokers.compare import Comparison, Cores
    from loadtest.workloads.workload import load
    from penstock.commands.progress import one_after_another, shown

    asked = [load(name) for name in workloads]
    comparison = Comparison(_kinds(brokers), repeats, Cores.apart() if pin else Cores(set(), set()))
    if worth:
        with shown("what survives SIGKILL") as progress:
            comparison.measure_worth(progress)
    for workload in asked:
        with one_after_another() as shown_next:
            rows = comparison.run(workload, shown_next)
        _show(rows)
    _write(comparison.results, json, html)


@bench.command("full")
def compare_fully(
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes", min=0.1, max=1_440, help="Time limit; workloads that have not begun by then are left out."
        ),
    ] = 30,
    repeats: Repeats = 3,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=3_600, help="Measured time of each run.")] = 3,
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="NAME,...", help="Brokers to compare; default: all installed ones.")
    ] = "",
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown", metavar="FILE", help="File for docs/benchmarks.md; its figure goes beside the JSON file."
        ),
    ] = None,
    json: Json = None,
    html: Html = None,
) -> None:
    """Run the comparison of docs/benchmarks.md: all workloads, each on the brokers that support it."""
    _check_extra()
    from loadtest.brokers.full import compare
    from loadtest.report.overview import drawn
    from loadtest.report.tables import benchmarks
    from penstock.commands.progress import one_after_another

    if brokers:
        _kinds(brokers)
    names = [name.strip() for name in brokers.split(",") if name]

    def finished(results: Results, rows: list[Row]) -> None:
        """Write the results so far: the comparison takes half an hour."""
        _show(rows)
        _write(results, json, None)

    with one_after_another() as shown_next:
        comparison = compare(minutes, repeats, seconds, shown_next, finished, names)
    _write(comparison.results, json, html)
    if markdown is not None:
        source, figure = "the JSON that was not kept", ""
        if json is not None:
            beside = json.with_suffix(".svg")
            source, figure = (f"{json.parent.name}/{each.name}" for each in (json, beside))
            _write_text(beside, drawn(comparison.results), "--json")
        _write_text(markdown, benchmarks(comparison.results, source, figure), "--markdown")


def _show(rows: list[Row]) -> None:
    for row in rows:
        typer.echo(f"{row.subject.name:18} {_line(row) if row.runs else f'{row.workload.name}: {row.fault}'}")


def _kinds(names: str) -> list[BrokerKind]:
    from loadtest.brokers.kinds import KINDS

    known = ", ".join(KINDS)
    wanted = (
        [name.strip() for name in names.split(",")] if names else [n for n, kind in KINDS.items() if kind.is_installed]
    )
    for name in wanted:
        if name not in KINDS:
            raise PenstockError(f"{name!r}: not a broker that bench can start; --brokers takes {known}")
        if not KINDS[name].is_installed:
            raise PenstockError(f"{name}: {KINDS[name].program} is not installed; install it or leave it out")
    return [KINDS[name] for name in wanted]


@bench.command("model")
def show_model(
    connections: Annotated[
        str, typer.Option("--connections", metavar="N", help="Simultaneous connections, such as 250k or 1M.")
    ] = "1M",
    queues: Annotated[str, typer.Option("--queues", metavar="N", help="Topics with messages.")] = "10M",
    rate: Annotated[str, typer.Option("--rate", metavar="N", help="Published messages/s.")] = "1M",
    size: Annotated[int, typer.Option("--size", min=0, metavar="BYTES", help="Size of a payload.")] = 200,
    fan_out: Annotated[float, typer.Option("--fan-out", min=0, metavar="N", help="Deliveries per message.")] = 1,
    retention: Annotated[
        float, typer.Option("--retention", min=0, metavar="HOURS", help="Retention of messages on disk.")
    ] = 24,
    costs: Annotated[
        Path | None, typer.Option("--costs", metavar="FILE", help="Costs from --measure; default: built-in costs.")
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option("--measure", metavar="FILE", help="Measure the costs on this machine and write them to FILE."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, max=600, help="Time to measure each rate.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate the resources for a number of connections, queues and messages from measured costs."""
    _check_extra()
    import msgspec

    from loadtest.model.needs import Demand, count, needs, read, table

    if measure is not None:
        _measure(measure, seconds)
        costs = measure
    measured = read(costs)
    demand = Demand(
        int(count(connections)), int(count(queues)), count(rate), size, fan_out=fan_out, retention_h=retention
    )
    found = needs(demand, measured.costs)
    if as_json:
        typer.echo(msgspec.json.encode({"demand": demand, "needs": found, "costs": measured.costs}))
        return
    for what, much, why in table(demand, found, measured.costs):
        typer.echo(f"{what:24} {much:>14}   {why}")
    typer.echo(f"\nMeasured {measured.begun[:10]} on {measured.machine.processor}; how far the model was off there:")
    for check in measured.checks:
        typer.echo(f"{check.what:40} {check.error:+.0%}")


Rules = Annotated[Path, typer.Argument(metavar="FILE", help="Output of `helm template`, or - for standard input.")]


@bench.command("scaling")
def replay_scaling(
    rules: Rules,
    load: Annotated[
        str, typer.Option("--load", metavar="NAME", help="day, burst (both made, not recorded), or a CSV file.")
    ] = "day",
    costs: Annotated[Path | None, typer.Option("--costs", metavar="FILE", help="Costs from `model --measure`.")] = None,
    fan_out: Annotated[float, typer.Option("--fan-out", min=0, metavar="N", help="Deliveries per message.")] = 1,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="File for a plot, as SVG.")] = None,
    ready_s: Annotated[
        float, typer.Option("--ready-s", min=0, max=3_600, metavar="S", help="Until a new gateway takes clients.")
    ] = 10,
) -> None:
    """Replay a load against the chart's HorizontalPodAutoscaler: does it scale in time, does it flap?"""
    _check_extra()
    from loadtest.model.autoscaler import Pod, rules_in
    from loadtest.model.needs import read
    from loadtest.model.scaling import read_load, replay, shipped_loads

    pod = Pod()
    found = replay(read_load(load), rules_in(_rendered(rules), pod), read(costs).costs, pod, fan_out, ready_s=ready_s)
    origin = " (made, not recorded)" if load in shipped_loads() else ""
    typer.echo(
        f"{load}{origin}: {min(m.wanted for m in found.moments)} to {max(m.wanted for m in found.moments)} gateways, "
        f"{found.gateway_hours:.1f} gateway-hours, {found.changes} changes, {found.turns} turns; "
        f"the busiest gateway did {found.fullest:.0%} of what it can, above all of it for {found.saturated_s} s"
    )
    if plot is not None:
        from loadtest.model.scaling_plot import drawn

        _write_text(plot, drawn(found, f"{load}{origin}"), "--plot")


@bench.command("forecast")
def compare_forecasts(
    rules: Rules,
    costs: Annotated[Path | None, typer.Option("--costs", metavar="FILE", help="Costs from `model --measure`.")] = None,
    fan_out: Annotated[float, typer.Option("--fan-out", min=0, metavar="N", help="Deliveries per message.")] = 1,
) -> None:
    """Compare scaling by reaction alone with forecasts beside it, on days that are made, not recorded."""
    _check_extra()
    from loadtest.model.autoscaler import Pod, rules_in
    from loadtest.model.forecast_table import as_markdown, forecast_rows
    from loadtest.model.needs import read
    from penstock.commands.progress import shown

    pod = Pod()
    by = rules_in(_rendered(rules), pod)
    with shown("replaying") as progress:
        rows = list(forecast_rows(by, read(costs).costs, pod, fan_out, progress))
    typer.echo(as_markdown(rows), nl=False)


def _rendered(rules: Path) -> str:
    """What helm rendered. Raises PenstockError."""
    try:
        return sys.stdin.read() if str(rules) == "-" else rules.read_text(encoding="utf-8")
    except OSError as error:
        raise PenstockError(f"{rules}: {error.strerror}; name what `helm template` rendered") from None


def _measure(path: Path, seconds: float) -> None:
    import msgspec

    from loadtest.model.measure import measure
    from penstock.commands.progress import shown

    with shown("measuring") as progress:
        found = measure(seconds, progress)
    _write_text(path, msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n", "--measure")


@bench.command("report")
def show_report(
    results: Annotated[Path, typer.Argument(metavar="FILE", help="Output of --json.")],
    html: Html = None,
) -> None:
    """Print results as Markdown, or write them as a page with plots."""
    _check_extra()
    from loadtest.report.results import read
    from loadtest.report.tables import markdown

    found = read(results)
    if html is None:
        typer.echo(markdown(found), nl=False)
    else:
        _write(found, None, html)


def _line(row: Row) -> str:
    from loadtest.report.page import cores, duration, number
    from loadtest.report.results import percentile

    if row.workload.steps:
        steps = "; ".join(f"{each.do} {each.seconds:.2f} s" for each in row.runs[-1].steps if each.measured)
        joined = row.median(lambda run: run.joined_per_s)
        delivered = row.median(lambda run: run.delivered_per_s)
        line = f"{row.workload.name:20} {steps}  connected {number(joined)}/s  delivered {number(delivered)}/s"
        lost = row.median(lambda run: run.lost)
        return f"{line}  LOST {number(lost)}" if lost else line
    lowest, highest = row.spread(lambda run: run.delivered_per_s)
    p50 = row.median(percentile("p50"))
    p99 = row.median(percentile("p99"))
    lost = row.median(lambda run: run.lost)
    line = (
        f"{row.workload.name:20} sent {number(row.median(lambda run: run.sent_per_s))}/s"
        f"  delivered {number(row.median(lambda run: run.delivered_per_s))}/s ({number(lowest)}–{number(highest)})"
        f"  p50 {duration(p50) or '-'}  p99 {duration(p99) or '-'}"
        f"  broker {cores(row.median(lambda run: run.broker_cores)) or '-'}"
    )
    return f"{line}  LOST {number(lost)}" if lost else line


def _write(results: Results, json: Path | None, html: Path | None) -> None:
    from loadtest.report.page import page
    from loadtest.report.results import write

    if json is not None:
        write(results, json)
    if html is not None:
        _write_text(html, page(results), "--html")


def _write_text(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror}; give a writable file with {option}") from None


def _check_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise PenstockError(f"{', '.join(missing)} not installed: pip install 'penstock[bench]'")
