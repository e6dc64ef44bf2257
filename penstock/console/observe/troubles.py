"""What is wrong with a server by one look at it, each with the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.console.observe.look import DISK_FREE, GROUP_LAG, SERVER, ServerLook

SEGMENTS_LEFT = 2
"""With less room than this on its disk the log is full soon."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """`page`: the address of a page about it; empty: there is none."""

    what: str
    remedy: str
    page: str = ""


def troubles(look: ServerLook) -> list[Trouble]:
    return [*_of_processes(look), *_of_store(look)]


def _of_processes(look: ServerLook) -> Iterator[Trouble]:
    server = look.server
    if server.unready:
        yield Trouble(server.unready, "no client should come here until this is over; see the log of the server")
    if server.health:
        yield Trouble(server.health, "see docs/operations.md, under what the health line says")
    if look.figures.total("penstock_link_connected") == 0:
        yield Trouble("the gateway is not connected to its store", "check that the store runs and can be reached")
    for name, process in look.processes.items():
        if name != SERVER and process.unready:
            remedy = "no client should come there until this is over; see the log of the gateway"
            yield Trouble(f"gateway {name}: {process.unready}", remedy, "#gateways")


def _of_store(look: ServerLook) -> Iterator[Trouble]:
    figures = look.figures
    free, segment = figures.total(DISK_FREE), json.loads(look.server.settings)["store.segment_bytes"]
    if free is not None and free < SEGMENTS_LEFT * segment:
        yield Trouble(
            f"the disk of the log has {free / 1e9:,.1f} GB left, less than {SEGMENTS_LEFT} segments",
            "set store.retention_bytes or store.retention_age_s, or enlarge the disk",
            "/log",
        )
    damaged = figures.total("penstock_scrub_damaged_bytes")
    if damaged:
        yield Trouble(
            f"{damaged:,.0f} bytes of the log are damaged", "run `penstock store repair` with a backup", "/log"
        )
    dead = {group: number for group, number in figures.by("penstock_group_consumers", "group") if not number}
    for group, lag in figures.by(GROUP_LAG, "group"):
        if lag and group in dead:
            what = f"group {group} has a lag of {lag:,.0f} messages and no consumer"
            yield Trouble(what, "start a consumer", "/groups")
