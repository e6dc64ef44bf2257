"""A store and gateways as processes of their own, with the face of one `penstock serve`."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from loadtest.chaos.part import Part
from tests.support.server_process import STOP_TIMEOUT_S, PenstockServer, ServeOptions, free_port, ready_urls

GATEWAYS = 2
SETTINGS = {"flush": "store.flush", "listen": "gateway.listen"}
"""Options of `serve` that are settings by another name; all others are called as their settings are."""


class ApartServer(PenstockServer):
    """Each gateway has addresses of its own, and each use of `port`, `url` or `urls` is the next gateway's: a test
    that connects a subscriber and then a publisher has them at different ones."""

    def __init__(self, data: Path, log: Path, options: ServeOptions) -> None:
        self.store_url = f"tcp://127.0.0.1:{free_port()}"
        self._parts: list[Part] = []  # the store first
        super().__init__(data, log, options)

    @property
    def store_part(self) -> Part:
        return self._parts[0]

    @property
    def gateway_parts(self) -> list[Part]:
        return self._parts[1:]

    def log_text(self) -> str:
        return "".join(part.log_text() for part in self._parts)

    def gateway_logs(self) -> list[str]:
        return [part.log_text() for part in self.gateway_parts]

    def gateways(self) -> list[psutil.Process]:
        return [psutil.Process(part.process.pid) for part in self.gateway_parts]

    def signal(self, number: signal.Signals) -> None:
        for part in self._parts[1:]:
            part.process.send_signal(number)

    def kill(self) -> None:
        for part in self._parts:
            part.process.kill()
        for part in self._parts:
            part.process.wait(STOP_TIMEOUT_S)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)
        for part in self._parts[1:]:
            assert part.process.wait(STOP_TIMEOUT_S) == 0, part.log_text()
        self._parts[0].terminate()

    def _start(self) -> None:
        settings = self._settings()
        doors = self._doors or [self._asked_for(settings, number) for number in range(GATEWAYS)]
        settings.pop("gateway.listen", None)
        store = ["store", "--data", str(self.data), "--listen", self.store_url]
        try:
            self._parts[:1] = [Part(self._log, store, settings, admin=False)]
            with ThreadPoolExecutor(GATEWAYS) as pool:
                starting = [pool.submit(self._gateway, number, urls, settings) for number, urls in enumerate(doors)]
            self._parts[1:] = [each.result() for each in starting if each.exception() is None]
            for each in starting:
                each.result()
        except BaseException:
            self.kill()
            raise
        self._doors = [ready_urls(part.log_text())[-len(doors[0]) :] for part in self.gateway_parts]

    def _settings(self) -> dict[str, object]:
        by_name = {SETTINGS.get(name, name.replace("-", "_")): value for name, value in self._options.flags.items()}
        return {**by_name, **self._options.settings}

    def start_gateway(self, number: int) -> None:
        """Again, at its addresses, after it was killed."""
        settings = self._settings()
        settings.pop("gateway.listen", None)
        self._parts[1 + number] = self._gateway(number, self._doors[number], settings)

    def _gateway(self, number: int, urls: Sequence[str], settings: dict[str, object]) -> Part:
        listen = [argument for url in urls for argument in ("--listen", url)]
        log = self._log.with_suffix(f".{number}.log")
        return Gateway(len(urls), log, ["gateway", "--store", self.store_url, *listen], settings)

    def _asked_for(self, settings: dict[str, object], number: int) -> list[str]:
        """Where a gateway is to listen: two cannot have the same path."""
        urls = str(settings.get("gateway.listen", "mqtt://127.0.0.1:0")).split(",")
        return [re.sub(r"^(unix://[^?]*)", rf"\1.{number}", url) if number else url for url in urls]


class Gateway(Part):
    """Ready once it listens everywhere."""

    def __init__(self, listeners: int, log: Path, command: list[str], settings: dict[str, object]) -> None:
        self.says = rf"(?:ready .*\n){{{listeners - 1}}}ready"
        super().__init__(log, command, settings, admin=False)
