"""Packet loss: nftables rules in a network namespace of this run. TCP notices only missing packets, and resends."""

from __future__ import annotations

import shutil
import subprocess

from loadtest.chaos.isolation import is_own
from loadtest.errors import LoadTestError

TABLE = "penstock_chaos"
CHAIN = f"inet {TABLE} sent"


def nft() -> str | None:
    return shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")


def why_not() -> str:
    """Why packets cannot be dropped here; empty if they can."""
    if not is_own():
        return "no namespace of its own is permitted here"
    if nft() is None:
        return "nft is missing; apt-get install nftables"
    try:
        PacketLoss().lose(1, 50)
    except LoadTestError as error:
        return str(error)
    return ""


class PacketLoss:
    """Owner of the rules: they drop some packets from and to a port."""

    def __init__(self) -> None:
        self._percent: dict[int, int] = {}

    def lose(self, port: int, percent: int) -> None:
        """Drop `percent` of a port's packets; 0: none. Raises LoadTestError."""
        self._percent[port] = percent
        rules = [f"add table inet {TABLE}", f"add chain {CHAIN} {{ type filter hook output priority 0; }}"]
        rules.append(f"flush chain {CHAIN}")
        for each, lost in self._percent.items():
            for side in ("sport", "dport") if lost else ():
                some = f"numgen random mod 100 < {lost}" if lost < 100 else ""
                rules.append(f"add rule {CHAIN} tcp {side} {each} {some} drop")
        done = subprocess.run([nft() or "nft", "-f", "-"], input="\n".join(rules), capture_output=True, text=True)
        if done.returncode:
            raise LoadTestError(f"nft: {' '.join(done.stderr.split())[:200]}")
