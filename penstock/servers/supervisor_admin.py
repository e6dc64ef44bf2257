"""The admin endpoint of `penstock serve --gateways N`, merged from the endpoints of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Protocol
from urllib.parse import urlsplit

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from penstock.servers.admin import ANSWER_S, LoopWatch, collectors_of_process

PAGE_BYTES = 4 << 20
OWN_NAME = "supervisor"


class Process(Protocol):
    """A process with an admin endpoint of its own."""

    name: str
    admin_url: str
    """Empty while it does not run."""


class Processes:
    """An AdminSource that asks other processes."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    def collectors(self, _: LoopWatch) -> list[Collector]:
        return [_Merged(self._processes)]

    @property
    def health(self) -> str:
        """The warnings of all processes after their `ok`."""
        told = ((process.name, _get(process, "/healthz")) for process in self._processes)
        notes = ((name, text.strip().partition("; ")[2]) for name, (status, text) in told if status == 200)
        return "; ".join(f"{name}: {note}" for name, note in notes if note)

    starting = ""  # each process reports its own start

    def unready(self, _: LoopWatch) -> str:
        """The first process that is not ready, and why."""
        for process in self._processes:
            status, text = _get(process, "/readyz")
            if status != 200:
                return f"{process.name}: {text.strip() or 'it does not answer'}"
        return ""


class _Merged(Collector):
    """Every metric of every process, with a label that names the process."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._own = collectors_of_process()

    def collect(self) -> Iterator[Metric]:
        is_up = GaugeMetricFamily(
            "penstock_process_up", "1 if the process answers with its metrics, otherwise 0.", labels=["process"]
        )
        families: dict[str, Metric] = {}
        for collector in self._own:
            _merge(families, OWN_NAME, collector.collect())
        for process in self._processes:
            status, text = _get(process, "/metrics")
            is_up.add_metric([process.name], int(status == 200))
            if status == 200:
                _merge(families, process.name, text_string_to_metric_families(text))
        yield is_up
        yield from families.values()

    def describe(self) -> list[Metric]:
        return []  # no other collector of this registry has the same names


def _merge(families: dict[str, Metric], name: str, found: Iterable[Metric]) -> None:
    for family in found:
        merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        for sample in family.samples:
            merged.add_sample(sample.name, {"process": name, **sample.labels}, sample.value)


def _get(process: Process, page: str) -> tuple[int, str]:
    """(status, text) of a page; (0, reason) if there is no answer."""
    url = process.admin_url
    if not url:
        return 0, "it is starting"
    connection = HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_S)
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        return answer.status, answer.read(PAGE_BYTES).decode(errors="replace")
    except (OSError, HTTPException) as error:
        return 0, f"it does not answer ({error})"
    finally:
        connection.close()
