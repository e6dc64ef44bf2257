"""Power cuts for other servers, each with its safest settings.

Messages that a client was told are durable (by a PUBACK of QoS 1, or an answer of Redis) must be there when the server
starts on an image. MQTT brokers keep them for an absent subscriber's session; in Redis, RPUSH puts them on a list.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, RedisError

from gateway.mqtt.packets import Disconnect, PubAck, Publish, QoS
from loadtest.brokers.kinds import found_program
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from loadtest.errors import LoadTestError
from loadtest.ports import STOP_TIMEOUT_S, free_port, wait_for_port
from loadtest.power.recording import Event, Recorder, Syncs, read_recording
from loadtest.power.run import difference, moment, new_folder
from loadtest.power.volume import Volume

WINDOW = 20
PAYLOAD_BYTES = 500
QUIET_S = 1.0
"""A subscriber that gets nothing for so long has everything."""
TOPIC = "power/a"
LIST = "list"
LOAD_S = 20.0
SUBSCRIBER, PUBLISHER = "power-subscriber", "power-publisher"


class ServerOutcome(msgspec.Struct):
    """The results of one server's images."""

    server: str
    settings: str
    file_system: str
    images: int = 0
    calls: int = 0
    syncs: int = 0
    acknowledged: int = 0
    lost: int = 0
    images_with_loss: int = 0
    not_started: int = 0
    examples: list[str] = []


class OtherServer(Protocol):
    """A server that can be started on a folder."""

    name: str
    settings: str

    def start(self, data: Path, port: int, environment: dict[str, str]) -> subprocess.Popen[bytes]: ...

    async def publish(self, port: int, payloads: list[bytes], acked: Callable[[bytes], None]) -> None: ...

    async def stored(self, port: int) -> list[bytes]: ...


def _begin(command: list[str], environment: dict[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _installed(program: str) -> str:
    path = found_program(program)
    if path is None:
        raise LoadTestError(f"{program} is missing; apt-get install it")
    return path


class _Mqtt:
    """A client that publishes at QoS 1, and an absent subscriber that reads the messages later."""

    async def publish(self, port: int, payloads: list[bytes], acked: Callable[[bytes], None]) -> None:
        subscriber, _ = await MqttConnection.open(port, persistent(SUBSCRIBER, version=4))
        async with subscriber:
            await subscriber.subscribe(1, TOPIC, QoS.AT_LEAST_ONCE)
            subscriber.send(Disconnect())
            await subscriber.ended()
        publisher, _ = await MqttConnection.open(port, persistent(PUBLISHER, version=4))
        async with publisher:
            inflight: dict[int, bytes] = {}
            for number, payload in enumerate(payloads):
                packet_id = number % 60_000 + 1
                inflight[packet_id] = payload
                publisher.send(Publish(TOPIC, payload, QoS.AT_LEAST_ONCE, packet_id=packet_id))
                while len(inflight) >= WINDOW:
                    for packet in await publisher.packets():
                        if isinstance(packet, PubAck):
                            acked(inflight.pop(packet.packet_id))

    async def stored(self, port: int) -> list[bytes]:
        connection, _ = await MqttConnection.open(port, persistent(SUBSCRIBER, version=4))
        found: list[bytes] = []
        async with connection:
            with suppress(TimeoutError, ConnectionError):
                while True:
                    publish = await connection.receive(Publish, QUIET_S)
                    found.append(publish.payload)
                    if publish.packet_id is not None:
                        connection.send(PubAck(publish.packet_id))
        return found


class Mosquitto(_Mqtt):
    """Mosquitto has no write-ahead log: it writes its whole state after so many changes."""

    name = "Mosquitto"
    settings = "persistence true, autosave_on_changes true, autosave_interval 1, max_queued_messages 0"

    def start(self, data: Path, port: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        config = data.parent / f"mosquitto-{port}.conf"
        lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "user root", f"persistence_location {data}/"]
        lines += [setting.strip() for setting in self.settings.split(",")]
        config.write_text("\n".join(lines) + "\n")
        process = _begin([_installed("mosquitto"), "-c", str(config)], environment, data.parent)
        wait_for_port(port, process)
        return process


class SyncedRedis:
    """A list; the answer to RPUSH comes once the append-only file is synced."""

    name = "Redis"
    settings = "appendonly yes, appendfsync always"

    def start(self, data: Path, port: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        own = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(data), "--save", ""]
        command = [_installed("redis-server"), *own, "--appendonly", "yes", "--appendfsync", "always"]
        process = _begin(command, environment, data)
        wait_for_port(port, process)
        return process

    async def publish(self, port: int, payloads: list[bytes], acked: Callable[[bytes], None]) -> None:
        async with Redis(port=port) as client:
            for at in range(0, len(payloads), WINDOW):
                some = payloads[at : at + WINDOW]
                pipeline = client.pipeline(transaction=False)
                for payload in some:
                    pipeline.rpush(LIST, payload)
                await pipeline.execute()
                for payload in some:
                    acked(payload)

    async def stored(self, port: int) -> list[bytes]:
        async with asyncio.timeout(LOAD_S), Redis(port=port) as client:
            while True:
                try:
                    return cast(list[bytes], await client.lrange(LIST, 0, -1))
                except BusyLoadingError:
                    await asyncio.sleep(0.05)


BROKERS: dict[str, Callable[[], OtherServer]] = {"mosquitto": Mosquitto, "redis": SyncedRedis}


async def compare(
    broker: OtherServer, seed: int, count: int, has_journal: bool, progress: Callable[[str, float], None]
) -> ServerOutcome:
    """Record a server, and start it on images of the recording. Raises LoadTestError."""
    folder = new_folder().resolve()
    kept = ServerOutcome(broker.name, broker.settings, "with a journal" if has_journal else "without order")
    try:
        data = folder / "data"
        data.mkdir()
        acked = await _record(broker, folder, data, seed)
        events = read_recording(folder / "record")
        kept.calls, kept.syncs = len(events), sum(event.kind == "e" for event in events)
        rngs = [random.Random(f"{seed} {number}") for number in range(count)]
        first = min((at for at, _ in acked), default=0)
        moments = [max(_event_after(events, first), moment(events, rng)) for rng in rngs]
        volume, at = Volume(), 0
        for number in sorted(range(count), key=lambda number: moments[number]):
            while at < moments[number]:
                volume.follow(events[at])
                at += 1
            position = events[at - 1].ends
            told = {payload for when, payload in acked if when <= position}
            image = folder / f"image-{number}"
            image.mkdir()
            how = volume.write_image(image / "data", rngs[number], has_journal)
            await _judge(broker, image / "data", how, told, kept)
            progress(f"{broker.name}: {kept.images} images", kept.images / count)
    finally:
        shutil.rmtree(folder)
    return kept


def _event_after(events: list[Event], position: int) -> int:
    return next((event.number for event in events if event.ends > position), len(events))


async def _record(broker: OtherServer, folder: Path, data: Path, seed: int) -> list[tuple[int, bytes]]:
    """When each message was acknowledged, as a position in the recording in bytes."""
    recorder = Recorder(folder, data)
    recorder.make_syncs(Syncs.SLOW)
    rng = random.Random(seed)
    acked: list[tuple[int, bytes]] = []
    port = free_port()
    process = await asyncio.to_thread(broker.start, data, port, recorder.environment)
    try:
        payloads = [b"%d " % i + bytes(rng.randrange(PAYLOAD_BYTES)) for i in range(600)]
        await broker.publish(port, payloads, lambda payload: acked.append((recorder.position, payload)))
        await asyncio.sleep(2)
    finally:
        with recorder.between_calls():
            _kill(process)
    volume = Volume()
    for event in read_recording(recorder.file):
        volume.follow(event)
    volume.write_whole(folder / "whole")
    if where := difference(data, folder / "whole"):
        raise LoadTestError(f"the recording does not lead to what {broker.name} left: {where}")
    return acked


async def _judge(broker: OtherServer, image: Path, how: str, told: set[bytes], kept: ServerOutcome) -> None:
    kept.images += 1
    kept.acknowledged += len(told)
    port = free_port()
    process = None
    try:
        process = await asyncio.to_thread(broker.start, image, port, {})
        lost = told - set(await broker.stored(port))
    except (RuntimeError, OSError, LoadTestError, EOFError, RedisError) as error:
        kept.not_started += 1
        kept.examples.append(f"{how}: it does not start: {error!r}"[:200])
    else:
        kept.lost += len(lost)
        kept.images_with_loss += bool(lost)
        if lost:
            kept.examples.append(f"{how}: {len(lost)} of {len(told)} are lost")
    finally:
        if process is not None:
            _kill(process)
        shutil.rmtree(image.parent)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)


def table(found: list[ServerOutcome]) -> str:
    """In Markdown."""
    lines = [
        "| server | file system | images | acknowledged | lost | images with a loss | images it does not start on |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for each in found:
        numbers = f"{each.acknowledged:,} | {each.lost:,} | {each.images_with_loss} | {each.not_started}"
        lines.append(f"| {each.server} | {each.file_system} | {each.images} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """python -m loadtest.power.brokers [IMAGES [SEED]]: a table of all installed servers."""
    images, seed = [*map(int, sys.argv[1:]), *(300, 1)[len(sys.argv) - 1 :]]
    found = [
        asyncio.run(compare(make(), seed, images, has_journal, lambda what, done: None))
        for make in BROKERS.values()
        for has_journal in (True, False)
    ]
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
