"""`penstock serve --gateways N` whose gateways are replaced: who they are, and what the next ones read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from tests.support.upgraded_gateway import UpgradedProcess


class UpgradedServer(UpgradedProcess):
    def __init__(self, folder: Path, port: int, gateways: int, settings: Mapping[str, object]) -> None:
        command = ["serve", "--gateways", str(gateways), "--data", str(folder / "data")]
        command += ["--listen", f"mqtt://127.0.0.1:{port}"]
        super().__init__(folder / "server.log", command, settings)

    @property
    def children(self) -> dict[int, str]:
        """The name of each supervised process, by its id."""
        found: dict[int, str] = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                found[child.pid] = child.environ().get("PENSTOCK_SUPERVISED", "")
            except psutil.Error:  # it has just ended
                continue
        return found

    @property
    def gateways(self) -> dict[int, str]:
        return {pid: name for pid, name in self.children.items() if name.startswith("gateway-")}

    @property
    def config(self) -> Path:
        """What the next gateways read."""
        gateway = psutil.Process(min(self.gateways)).cmdline()
        return Path(gateway[gateway.index("--config") + 1])

    def ask(self) -> None:
        """Ask for an upgrade, and do not wait."""
        os.kill(self.process.pid, signal.SIGUSR2)

    def next_process(self, old: Mapping[int, str]) -> int:
        """A gateway that is none of the old ones."""
        self.wait_for(lambda: self.gateways.keys() - old.keys())
        (found,) = self.gateways.keys() - old.keys()
        return found

    def fails(self, *steps: Callable[[], object]) -> str:
        """An upgrade that ends with the first gateway; `steps`: what is done meanwhile. Returns what that says."""
        ends = ("was not replaced", "this process goes on")
        before = [len(self.said(each)) for each in ends]
        self.ask()
        for step in steps:
            step()
        self.wait_for(lambda: all(len(self.said(each)) > had for each, had in zip(ends, before, strict=True)))
        return self.said(r"upgrade: (.*); this process goes on")[-1]

    def replace_store(self) -> None:
        """End the store's process, and wait for the next one; the gateways stay."""
        (old,) = self._stores()
        os.kill(old, signal.SIGTERM)
        self.wait_for(lambda: self._stores() and old not in self._stores())

    def _stores(self) -> list[int]:
        return [pid for pid, name in self.children.items() if name == "store"]
