"""`penstock chaos`: inject faults into its own deployment under load, and check which promises hold."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from loadtest.chaos.deploy import Deployment
    from loadtest.chaos.faults import Equipment
    from loadtest.chaos.plan import ChaosStep, Options
    from loadtest.chaos.results import Chaos
    from loadtest.power.run import PowerOptions

Recording = Annotated[
    Path | None, typer.Option("--recording", metavar="FOLDER", help="With --power: a recording from an earlier run.")
]
Image = Annotated[int | None, typer.Option("--image", metavar="N", min=0, help="With --recording: only this image.")]


def chaos(
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the plan of faults.")] = 1,
    duration: Annotated[
        float, typer.Option("--duration", metavar="SECONDS", min=1, max=7 * 86_400, help="Time of the last fault.")
    ] = 60,
    faults: Annotated[
        str, typer.Option("--faults", metavar="KIND,...", help="Kinds of faults; default: all permitted ones.")
    ] = "",
    gateways: Annotated[
        int, typer.Option("--gateways", metavar="N", min=0, max=16, help="Gateways; 0: all in one process.")
    ] = 2,
    redis: Annotated[bool, typer.Option(help="Gateways write the queues that they watch into Redis.")] = False,
    rate: Annotated[
        int, typer.Option("--rate", metavar="N", min=10, max=5_000, help="Messages/s of all publishers together.")
    ] = 500,
    flush: Annotated[
        Literal["sync", "async"], typer.Option("--flush", help="When messages are acknowledged.")
    ] = "sync",
    power: Annotated[
        bool, typer.Option("--power", help="Cut the power of a recorded store at many moments, in place of faults.")
    ] = False,
    images: Annotated[int, typer.Option("--images", metavar="N", min=1, help="With --power: number of images.")] = 300,
    recording: Recording = None,
    image: Image = None,
    rot: Annotated[bool, typer.Option("--rot", help="Damage the files of a store, in place of faults.")] = False,
    injuries: Annotated[int, typer.Option("--injuries", metavar="N", min=1, help="With --rot: their number.")] = 40,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan of faults and exit.")] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="File for all results, as JSON.")] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="File for a Markdown report.")] = None,
) -> None:
    """Break a deployment of its own on purpose, and check whether it keeps its promises."""
    from loadtest.power.run import PowerOptions

    _check_extra(redis)
    if power or rot:
        _look_at_files(power, PowerOptions(images, seed, flush, recording, image), injuries, json)
        return
    if redis and not gateways:
        raise PenstockError("--redis is for gateways: leave it out, or leave --gateways 0 out")
    from loadtest.chaos import isolation
    from loadtest.chaos import plan as plans
    from loadtest.chaos.deploy import Deployment
    from loadtest.chaos.faults import Equipment

    isolation.enter(sys.argv[1:])
    isolation.begin()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: everything is put in order first
    deployment = Deployment(gateways, redis, flush, rate)
    folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    keeps = False
    try:
        equipment = Equipment(folder, deployment.disk_bytes)
        try:
            options = plans.Options(seed, duration, _kinds(faults, equipment), gateways, redis)
            steps = plans.plan(options)
            if plan:
                _print_plan(steps)
                return
            found = _begin(options, deployment, equipment)
            _run(found, deployment, folder, equipment, steps, duration)
            keeps = bool(found.complaints)
            if keeps:
                equipment.disk.keep(folder / "kept")
        finally:
            equipment.close()
    finally:
        if not keeps:
            shutil.rmtree(folder)
    _tell(found, folder, json, report)


def _look_at_files(is_power: bool, options: PowerOptions, injuries: int, json: Path | None) -> None:
    from loadtest.power.rot import RotOptions
    from penstock.commands.chaos_power import run_power
    from penstock.commands.chaos_rot import run_rot

    if is_power:
        run_power(options, json)
    else:
        run_rot(RotOptions(injuries, options.seed, options.flush), json)


def _check_extra(redis: bool) -> None:
    from importlib.util import find_spec

    for name, extra in (("psutil", "bench"), ("redis", "redis")):
        if (redis or extra != "redis") and find_spec(name) is None:
            raise PenstockError(f"{name} not installed: pip install 'penstock[{extra}]'")


def _kinds(asked: str, equipment: Equipment) -> tuple[str, ...]:
    from loadtest.chaos.plan import KINDS

    names = tuple(name.strip() for name in asked.split(",")) if asked else tuple(KINDS)
    for name in names:
        if name not in KINDS:
            raise PenstockError(f"{name!r}: not a fault; --faults takes {', '.join(KINDS)}")
    for name, why in equipment.left_out.items():
        if name in names:
            typer.echo(f"left out: {name} ({why})", err=True)
    permitted = tuple(name for name in KINDS if name in names and name not in equipment.left_out)
    if not permitted:
        raise PenstockError("nothing of --faults is permitted on this machine")
    return permitted


def _print_plan(steps: list[ChaosStep]) -> None:
    for number, step in enumerate(steps, 1):
        typer.echo(f"{number:4}  {step.calm_s:.1f} s calm, then {step}")


def _begin(options: Options, deployment: Deployment, equipment: Equipment) -> Chaos:
    from loadtest.chaos.plan import KINDS
    from loadtest.chaos.results import Chaos
    from loadtest.machine import Machine

    command = ["penstock", "chaos", "--seed", str(options.seed), "--duration", f"{options.duration_s:g}"]
    command += ["--faults", ",".join(options.kinds), "--gateways", str(options.gateways)]
    command += ["--redis"] * options.has_redis + ["--rate", str(deployment.rate), "--flush", deployment.flush]
    means = [f"{name}: {KINDS[name].text}" for name in options.kinds]
    return Chaos(
        command=shlex.join(command),
        deployment=str(deployment),
        seed=options.seed,
        means=[*means, f"data on {equipment.disk.kind}"],
        left_out=equipment.left_out,
        machine=Machine.here(),
        rate=deployment.rate,
    )


def _run(
    found: Chaos, deployment: Deployment, folder: Path, equipment: Equipment, steps: list[ChaosStep], duration: float
) -> None:
    from penstock.commands.progress import shown

    with shown("chaos") as progress:
        asyncio.run(_until_ended(_suffer(found, deployment, folder, equipment, steps, duration, progress)))


async def _suffer(
    found: Chaos,
    deployment: Deployment,
    folder: Path,
    equipment: Equipment,
    steps: list[ChaosStep],
    duration: float,
    progress: Callable[[str, float], None],
) -> None:
    from loadtest.chaos.deploy import deployed
    from loadtest.chaos.run import ChaosRun

    async with deployed(deployment, folder, equipment) as (cluster, faults):
        await ChaosRun(cluster, faults, found, typer.echo).run(steps, duration, progress)


async def _until_ended(doing: Coroutine[None, None, None]) -> None:
    """SIGTERM ends the run like Ctrl-C. Neither interrupts the start or stop of a process."""
    task = asyncio.ensure_future(doing)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        raise PenstockError("ended early; nothing is left behind") from None


def _tell(found: Chaos, folder: Path, json: Path | None, report: Path | None) -> None:
    from loadtest.chaos.results import as_json, write

    if json is not None:
        write(json, as_json(found))
    if report is not None:
        write(report, found.markdown().encode())
    typer.echo(found.verdict())
    if found.complaints:
        typer.echo(f"data and logs: {folder}\nthe same again: {found.command}")
        raise typer.Exit(1)
