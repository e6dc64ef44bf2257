"""The needs of a deployment with so many connections, queues and messages, from the measured cost of one of each."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from loadtest.errors import LoadTestError
from loadtest.machine import Machine

BUSY = 0.7
"""Planned use of a core; the rest is for bursts."""
DAY_S = 86_400
LEAST_GATEWAYS = 2
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs measured on a store with one gateway.

    *_turning_cores: of a process that is never idle, for its loop's turns alone.
    gateway_in_us, gateway_out_us: CPU beyond that for a device's message (QoS 1), and for each delivery to a device.
    gateway_alone_us: all CPU of a message that comes alone; a keep-alive costs at most that.
    store_us: CPU for a message, beyond the turns.
    hop_us: extra CPU per message of two processes instead of one, of both together.
    connect_*_us: a new connection with its subscription; *_connection_bytes: while it lasts.
    store_base_bytes: with full buffers, as with many queues.
    queue_bytes, queue_disk_bytes: one more topic with one message, in memory and in the index.
    message_disk_bytes: in the log and the index, beside topic and payload.
    """

    gateway_turning_cores: NotNegative
    gateway_in_us: Positive
    gateway_out_us: NotNegative
    gateway_alone_us: Positive
    store_turning_cores: NotNegative
    store_us: Positive
    hop_us: float
    connect_gateway_us: NotNegative
    connect_store_us: NotNegative
    gateway_base_bytes: Positive
    store_base_bytes: Positive
    gateway_connection_bytes: Positive
    store_connection_bytes: NotNegative
    queue_bytes: NotNegative
    queue_disk_bytes: NotNegative
    message_disk_bytes: Positive


class ModelCheck(msgspec.Struct, frozen=True):
    """A figure that the model predicts, and its separate measurement."""

    what: str
    unit: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Share of the measured value; above 0: the prediction is too high."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


class Measured(msgspec.Struct, frozen=True):
    """The file of costs; `points`: the measurements from which the costs are computed."""

    begun: str
    machine: Machine
    costs: Costs
    points: dict[str, dict[str, float]]
    checks: list[ModelCheck]


class Demand(msgspec.Struct, frozen=True):
    """The required load. rate: messages/s published; fan_out: deliveries of each; sizes in bytes."""

    connections: int
    queues: int
    rate: float
    size: int = 200
    topic_size: int = 30
    fan_out: float = 1
    keep_alive_s: float = 60
    connections_each: int = 100_000
    retention_h: float = 24


class Needs(msgspec.Struct, frozen=True):
    """The result. Cores: of messages, beside the turns of each process; counts keep each process below BUSY."""

    gateway_cores: float
    gateways: int
    gateway_bound: str
    store_cores: float
    stores: int
    gateway_bytes: float
    store_bytes: float
    disk_bytes: float
    disk_bytes_per_s: float
    network_bytes_per_s: float
    reconnect_s: float


def needs(demand: Demand, costs: Costs) -> Needs:
    deliveries = demand.rate * demand.fan_out
    pings = demand.connections / demand.keep_alive_s
    gateway_us = demand.rate * costs.gateway_in_us + deliveries * costs.gateway_out_us + pings * costs.gateway_alone_us
    bounds = {
        "CPU": _enough(gateway_us / 1e6, costs.gateway_turning_cores),
        "connections": math.ceil(demand.connections / demand.connections_each),
        "that one may fail": LEAST_GATEWAYS,
    }
    bound = max(bounds, key=lambda name: bounds[name])
    stores = max(1, _enough(demand.rate * costs.store_us / 1e6, costs.store_turning_cores))
    each_bytes = costs.message_disk_bytes + demand.size + demand.topic_size
    return Needs(
        gateway_cores=gateway_us / 1e6,
        gateways=bounds[bound],
        gateway_bound=bound,
        store_cores=demand.rate * costs.store_us / 1e6,
        stores=stores,
        gateway_bytes=bounds[bound] * costs.gateway_base_bytes + demand.connections * costs.gateway_connection_bytes,
        store_bytes=(
            stores * costs.store_base_bytes
            + demand.connections * costs.store_connection_bytes
            + demand.queues * costs.queue_bytes
        ),
        disk_bytes=demand.rate * demand.retention_h * 3600 * each_bytes + demand.queues * costs.queue_disk_bytes,
        disk_bytes_per_s=demand.rate * each_bytes,
        network_bytes_per_s=(demand.rate + deliveries) * (demand.size + demand.topic_size),
        reconnect_s=max(
            demand.connections * costs.connect_store_us / stores,
            demand.connections * costs.connect_gateway_us / bounds[bound],
        )
        / 1e6,
    )


def _enough(cores: float, turning_cores: float) -> int:
    """Number of processes for so many cores of messages, and so many of turns in each, so that none is above BUSY."""
    return math.ceil(round(cores / max(BUSY / 4, BUSY - turning_cores), 6))


def table(demand: Demand, found: Needs, costs: Costs) -> list[tuple[str, str, str]]:
    """Rows of item, amount and reason."""
    why = {
        "CPU": f"{found.gateway_cores:.1f} cores for messages, each {BUSY:.0%} busy",
        "connections": f"{demand.connections_each:,} each",
    }.get(found.gateway_bound, found.gateway_bound)
    return [
        ("gateways", f"{found.gateways:,}", why),
        ("stores", f"{found.stores:,}", f"{found.store_cores:.1f} cores for messages; a topic is on one store"),
        (
            "memory of all gateways",
            _bytes(found.gateway_bytes),
            f"{costs.gateway_connection_bytes:,.0f} B a connection",
        ),
        (
            "memory of all stores",
            _bytes(found.store_bytes),
            f"{costs.store_connection_bytes:,.0f} B a connection, {costs.queue_bytes:,.0f} B a queue",
        ),
        (
            "written to disk",
            _bytes(found.disk_bytes_per_s) + "/s",
            f"{costs.message_disk_bytes:,.0f} B beside the payload",
        ),
        ("disk", _bytes(found.disk_bytes), f"{demand.retention_h:g} h of messages, and the queues"),
        ("network of devices", f"{found.network_bytes_per_s * 8 / 1e9:,.1f} Gbit/s", "in and out"),
        ("all connect again", f"{found.reconnect_s:,.0f} s", "as fast as gateways and stores can"),
    ]


def _bytes(value: float) -> str:
    for power, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if value >= power:
            return f"{value / power:,.1f} {unit}"
    return f"{value:,.0f} B"


def count(text: str) -> float:
    """Parse `1M`, `250k`, `1.5G` or a plain number. Raises LoadTestError."""
    powers = {"k": 1e3, "m": 1e6, "g": 1e9}
    unit = powers.get(text[-1:].lower(), 1)
    try:
        value = float(text[:-1] if unit > 1 else text) * unit
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1e15:
        raise LoadTestError(f"{text!r}: no number; use one like 20000, 250k or 1M")
    return value


def read(path: Path | None) -> Measured:
    """Read a file of costs; default: the one in the package. Raises LoadTestError."""
    place = path or Path(str(resources.files("loadtest.model") / "costs.json"))
    try:
        return msgspec.json.decode(place.read_bytes(), type=Measured)
    except OSError as error:
        raise LoadTestError(f"{place}: {error.strerror}; `penstock bench model --measure FILE` makes one") from None
    except msgspec.MsgspecError as error:
        raise LoadTestError(f"{place}: not a file of measured costs ({error})") from None
