"""How long clients wait when `penstock serve` is replaced: `python -m tests.bench.handed_over [--topics N]`.

Clients are connected and idle, each subscribed to a topic of its own. Every topic has a message, and some have one that
came just before, so that closing the store has something to write.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from penstock import Client
from tests.support.mqtt_swarm import Swarm, raise_descriptor_limit
from tests.support.upgraded_store_server import UpgradedStoreServer

PATIENCE_S = 60
AT_ONCE = 2_000
NEWEST = 20_000  # topics that get one more message just before each upgrade
SETTINGS: dict[str, object] = {"store.flush": "async", "gateway.sys_interval_s": 0}


async def publish(data: Path, topics: range) -> None:
    """A message of 100 bytes for each topic, by the socket in the data folder."""
    async with Client(f"unix://{data / 'console.sock'}") as client:
        for at in range(topics.start, topics.stop, AT_ONCE):
            numbers = range(at, min(at + AT_ONCE, topics.stop))
            await client.publish_many([(f"many/{number % 1_000}/{number}", bytes(100)) for number in numbers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=0)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    raise_descriptor_limit(given.clients)
    with tempfile.TemporaryDirectory() as folder:
        server = UpgradedStoreServer(Path(folder), SETTINGS)
        try:
            asyncio.run(publish(server.data, range(given.topics)))
            with Swarm("idle-", [f"idle/{number}" for number in range(given.clients)]) as swarm:
                swarm.connect([server.port])
                swarm.poll(swarm.all_online, PATIENCE_S)
                for _ in range(given.times):
                    asyncio.run(publish(server.data, range(min(NEWEST, given.topics))))
                    server.upgrade()
                    print(*server.said(r"upgrade: (the state was .*)")[-1:], f"(load {os.getloadavg()[0]:.1f})")
                    print(*server.said(r"upgrade: (process .*)")[-1:])
                swarm.poll(lambda: True, PATIENCE_S)
                assert not swarm.lost
        finally:
            server.kill()


if __name__ == "__main__":
    main()
