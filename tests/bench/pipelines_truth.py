"""Results that the programs of examples/spark must find, computed by pandas from what generate.py made there.

Each check reads a program's result and raises AssertionError, with what differs, unless it is that.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.manifest import FILES, read_manifest

FIELDS = {"machine": ("time", "temperature", "vibration"), "vehicle": ("time", "latitude", "speed_kmh")}
MINUTE_MS = 60_000
LATE_MS = 600_000  # in telemetry.py and anomalies.py: so far a window stays open behind the newest reading
LEAST_READINGS = 12
FAR = 6.0
NORMAL_MAD = 1.4826
MOST_ANOMALIES = 0.002  # of the windows: the model takes one in a thousand of those it learnt from for one
PAUSE_MS = 300_000
EARTH_KM = 6371.0


class Truth:
    """The readings and positions of a fleet, in the order of storing. `generate`: the module of that name."""

    def __init__(self, generate: Any, fleet: Any) -> None:
        found: dict[str, list[tuple[int, int, float, float]]] = {"machine": [], "vehicle": []}
        self.unreadable = 0
        self.bytes_by_level: Counter[str] = Counter()
        for topic, payload, properties in chain.from_iterable(generate.rounds(fleet)):
            level, number, _ = topic.split("/")
            self.bytes_by_level[level] += len(payload)
            fields = _decoded(payload, bool(properties))
            if fields is None:
                self.unreadable += 1
            else:
                found[level].append((int(number), *(fields[name] for name in FIELDS[level])))
        self.fleet = fleet
        self.step_ms = generate.STEP_S * 1000
        self.readings, self.positions = (
            pd.DataFrame(rows, columns=[level, *FIELDS[level]]) for level, rows in found.items()
        )
        self.closed_ms = int(self.readings["time"].max()) - LATE_MS

    @property
    def count(self) -> int:
        return len(self.readings) + self.unreadable + len(self.positions)

    # --- by program

    def check_telemetry(self, out: Path) -> None:
        grouped = self.readings.assign(minute=self.readings["time"] // MINUTE_MS * MINUTE_MS).groupby(
            ["machine", "minute"]
        )
        expected = grouped.agg(
            readings=("time", "size"),
            temperature=("temperature", "mean"),
            hottest=("temperature", "max"),
            vibration_spread=("vibration", "std"),
        )
        expected = expected[expected.index.get_level_values("minute") + MINUTE_MS <= self.closed_ms]
        found = _read(out / "minutes", "machine", "minute")
        _equal(found[list(expected.columns)], expected)

    def check_offline(self, out: Path) -> None:
        found = pq.read_table(out / "alerts").to_pandas()
        began_ms = (self.fleet.end_s - self.fleet.minutes * 60) * 1000
        silent = self.fleet.silent_s
        expected = {
            ("offline", began_ms + silent.start * 1000 - self.step_ms),
            ("online", began_ms + silent.stop * 1000),
        }
        said = {(row.state, _ms(row.since) - 1) for row in found.itertuples()}  # 1 ms: each machine has its own
        assert set(found["machine"]) == {"machine/1"}, found
        assert len(found) == 2, found
        assert said == expected, found

    def check_scores(self, out: Path) -> None:
        found = _read(out / "scores", "machine", "start")
        far = self._far_windows()
        assert len(far)
        _equal(found[["temperature", "vibration"]], far[["temperature", "vibration"]])

    def check_train(self, out: Path) -> None:
        usual = json.loads((out / "usual.json").read_text())["distance"]
        assert 0 < usual < math.inf, usual

    def check_detect(self, out: Path) -> None:
        """All that are far by score, and few others; and they are what they are said to be."""
        found = _read(out / "anomalies", "machine", "start")
        windows = self._windows()
        windows = windows[windows.index.get_level_values("start") + 2 * MINUTE_MS <= self.closed_ms]
        far = self._far_windows().index.intersection(windows.index)
        assert far.isin(found.index).all(), far.difference(found.index)
        assert len(found) <= len(far) + len(windows) * MOST_ANOMALIES, len(found)
        _equal(found[["temperature", "vibration"]], windows.loc[found.index, ["temperature", "vibration"]])

    def check_quality(self, out: Path) -> None:
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.read_text().splitlines()]
        found = {row[0]: row[1] for row in cells if len(row) == 3}
        by_machine = self.readings.groupby("machine")["time"]
        newest_before = by_machine.cummax().groupby(self.readings["machine"]).shift()
        expected = {
            "unreadable payload": self.unreadable,
            "no temperature": 0,
            "no vibration": 0,
            "temperature out of -40 to 150": int((~self.readings["temperature"].between(-40, 150)).sum()),
            "measured before one that was stored earlier": int((self.readings["time"] < newest_before).sum()),
            "measured in the future": 0,
            "measured twice at one time": int(self.readings.duplicated(["machine", "time"], keep=False).sum()),
        }
        said = {name: found.get(name) for name in expected}
        assert said == {name: f"{count:,}" for name, count in expected.items()}, said
        assert f"{len(self.readings) + self.unreadable:,} messages." in out.read_text()

    def check_trips(self, out: Path) -> None:
        positions = self.positions.sort_values(["vehicle", "time"], kind="stable")
        pause = positions.groupby("vehicle")["time"].diff() > PAUSE_MS
        positions["trip"] = pause.groupby(positions["vehicle"]).cumsum() + 1
        steps = positions.groupby(["vehicle", "trip"])["latitude"].diff().abs().fillna(0.0)
        positions["km"] = np.radians(steps) * EARTH_KM  # due north
        expected = positions.groupby(["vehicle", "trip"]).agg(
            positions=("time", "size"), km=("km", "sum"), top_kmh=("speed_kmh", "max")
        )
        found = pq.read_table(out).to_pandas()
        found["vehicle"] = found["vehicle"].str.split("/").str[1].astype(int)
        found = found.set_index(["vehicle", "trip"]).sort_index()
        _equal(found[list(expected.columns)], expected)

    def check_exported(self, out: Path) -> None:
        """As many rows, and bytes of payload by first level. That the rows are the store's it has looked at itself."""
        manifest = read_manifest(out)
        assert manifest is not None
        found: Counter[str] = Counter()
        for file in manifest.files:
            with pq.ParquetFile(out / FILES / file.path) as data:
                for batch in data.iter_batches(columns=["topic", "payload"]):
                    level = batch["topic"][0].as_py().split("/")[0]
                    found[level] += pc.sum(pc.binary_length(batch["payload"])).as_py()
        assert (manifest.rows, found) == (self.count, self.bytes_by_level), (manifest.rows, found)

    # --- windows of two minutes, one each minute

    def _windows(self) -> pd.DataFrame:
        minutes = self.readings["time"] // MINUTE_MS * MINUTE_MS
        both = pd.concat([self.readings.assign(start=minutes), self.readings.assign(start=minutes - MINUTE_MS)])
        found = both.groupby(["machine", "start"]).agg(
            readings=("time", "size"), temperature=("temperature", "mean"), vibration=("vibration", "mean")
        )
        return found[found["readings"] >= LEAST_READINGS]

    def _far_windows(self) -> pd.DataFrame:
        """By score, from medians."""
        windows = self._windows()
        is_far = np.zeros(len(windows), np.bool_)
        for name in ("temperature", "vibration"):
            away = (windows[name] - windows.groupby("machine")[name].transform("median")).abs()
            is_far |= (away / (away.groupby("machine").transform("median") * NORMAL_MAD) > FAR).to_numpy()
        return windows[is_far]


def _decoded(payload: bytes, is_cbor: bool) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = cbor2.loads(payload) if is_cbor else json.loads(payload)
    except ValueError:
        return None
    return found


def _ms(moment: pd.Timestamp) -> int:
    return int(moment.value) // 1_000_000


def _read(folder: Path, name: str, time: str) -> pd.DataFrame:
    """A result by the number of the machine and the Unix time in ms."""
    found = pq.read_table(folder).to_pandas()
    found[name] = found[name].str.split("/").str[1].astype(int)
    found[time] = found[time].astype("datetime64[ms]").astype("int64")
    assert not found.duplicated([name, time]).any(), "rows twice"
    return found.set_index([name, time]).sort_index()


def _equal(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(
        found.sort_index(),
        expected.sort_index(),
        check_dtype=False,
        check_names=False,
        check_index_type=False,
        rtol=1e-6,
    )
