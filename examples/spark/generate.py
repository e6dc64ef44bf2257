"""Makes a data folder as if a fleet had published to a server for some time: something for the other programs to read.

    python generate.py DATA --machines 100 --minutes 60

Machines send a reading every five seconds to machine/N/telemetry, those with an odd number as CBOR. Machine 0 runs hot
for a while, machine 1 falls silent and comes back, machine 2 sends some nonsense, machine 3 says some things late. A
fifth as many vehicles drive for twelve minutes, then rest for eight.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cbor2

from lightqueue.message_store import MessageStore
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.settings import StoreSettings

STEP_S = 5
DRIVE_S, REST_S = 720, 480
CBOR_PROPERTIES = b"\x03\x00\x10application/cbor"  # MQTT 5's content type, as in a PUBLISH


@dataclass(frozen=True)
class Fleet:
    """A fleet: number of machines, minutes of messages, and their end (Unix seconds)."""

    machines: int
    minutes: int
    end_s: int

    def steps(self) -> Iterator[tuple[int, int]]:
        """(Unix ms, seconds since the beginning) of each round of messages."""
        for since_s in range(0, self.minutes * 60, STEP_S):
            yield (self.end_s - self.minutes * 60 + since_s) * 1000, since_s

    @property
    def silent_s(self) -> range:
        """The time in which machine 1 is silent."""
        return range(self.minutes * 20, self.minutes * 40)

    @property
    def hot_s(self) -> range:
        """The time in which machine 0 runs hot."""
        return range(self.minutes * 30, self.minutes * 30 + 180)


Sent = tuple[str, bytes, bytes]  # topic, payload, properties as MQTT has them


def readings(fleet: Fleet, time_ms: int, since_s: int, chance: random.Random) -> Iterator[Sent]:
    """The messages of all machines in one round."""
    for machine in range(fleet.machines):
        if machine == 1 and since_s in fleet.silent_s:
            continue
        reading = {
            "time": time_ms + machine % 1000,
            "temperature": round(60 + 10 * math.sin(since_s / 600 + machine) + chance.gauss(0, 1), 3),
            "vibration": round(2 + chance.gauss(0, 0.2), 4),
            "pressure": round(5 + chance.gauss(0, 0.05), 4),
        }
        if machine == 0 and since_s in fleet.hot_s:
            reading |= {"temperature": 130 + chance.gauss(0, 5), "vibration": 9 + chance.gauss(0, 1)}
        if machine == 3 and since_s % 300 == 0:
            reading["time"] -= 60_000
        payload = cbor2.dumps(reading) if machine % 2 else json.dumps(reading).encode()
        if machine == 2 and since_s % 300 == 0:
            payload = b"\xff nonsense"
        yield f"machine/{machine}/telemetry", payload, CBOR_PROPERTIES if machine % 2 else b""


def positions(fleet: Fleet, time_ms: int, since_s: int) -> Iterator[Sent]:
    """The positions of the vehicles on the road."""
    driving_s = since_s % (DRIVE_S + REST_S)
    for vehicle in range(fleet.machines // 5 if driving_s < DRIVE_S else 0):
        latitude = 52 + vehicle / 100 + driving_s * 0.0001
        position = {"time": time_ms, "latitude": latitude, "longitude": 13.0, "speed_kmh": 40.0 + vehicle}
        yield f"vehicle/{vehicle}/position", json.dumps(position).encode(), b""


def rounds(fleet: Fleet) -> Iterator[list[Sent]]:
    """The messages of each round; always the same for the same fleet."""
    chance = random.Random(1)
    for time_ms, since_s in fleet.steps():
        yield [*readings(fleet, time_ms, since_s, chance), *positions(fleet, time_ms, since_s)]


def write(data: Path, fleet: Fleet) -> int:
    """Store all messages. Returns their number."""
    store = MessageStore(StoreSettings(data=data, flush="async"))
    count = 0
    for sent in rounds(fleet):
        batch = RecordBatch()
        for topic, payload, properties in sent:
            batch.append(RecordType.MESSAGE, payload, topic=topic.encode(), properties=properties, flags=1)
            count += 1
        store.append(batch)
        store.tick()
    store.close()
    return count


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder to be made")
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--end", type=int, default=int(time.time()), help="Unix time of the last (now)")
    options = parser.parse_args(argv)
    if options.data.exists():
        parser.error(f"{options.data} is there already")
    count = write(options.data, Fleet(options.machines, options.minutes, options.end))
    print(f"{count:,} messages in {options.data}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
