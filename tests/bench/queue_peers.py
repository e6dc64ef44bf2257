"""Servers that queues are compared with, each on free ports and in a folder of its own, ended by their process ids."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections import deque
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

import pika
import redis
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from penstock import Client
from penstock.sdk.message import PAYLOAD
from store.records.record_bytes import walk
from store.wire.group_messages import Ack, Pop, Popped, Receipt, Settled
from tests.support.server_process import START_TIMEOUT_S, STOP_TIMEOUT_S, free_port, wait_for_port
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_consumer import GroupConsumer

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
GROUP = "bench"
POP_BYTES = 4 << 20
START_ATTEMPTS = 5  # RabbitMQ takes 5 s, and a minute on a busy machine


class Queue(Protocol):
    """A server with one empty queue."""

    async def publish(self, payload: bytes, count: int, batch: int) -> None:
        """That many messages, `batch` of them at a time; the next ones once these are acknowledged."""

    async def consume(self, count: int, batch: int) -> None:
        """Take them as one consumer of a group, and acknowledge each batch."""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server; what it started counts as well."""

    def close(self) -> None: ...


class PenstockQueue:
    """A store, by its client and by the wire's groups."""

    def __init__(self, folder: Path, flush: str) -> None:
        self._store = StoreProcess(folder, settings={"store.flush": flush})
        self.process = self._store.process

    async def publish(self, payload: bytes, count: int, batch: int) -> None:
        async with Client(self._store.url.replace("tcp://", "penstock://")) as client:
            for _ in range(count // batch):
                async with client.batch() as together:
                    for _ in range(batch):
                        together.publish("queue", payload)

    async def consume(self, count: int, batch: int) -> None:
        """Acknowledges without waiting, as the answers come with the log's next write of groups (`group_flush_ms`)."""
        consumer = GroupConsumer(self._store.url, "consumer", GROUP, "queue")
        peer, ref = consumer.peer, consumer.ref
        asked: deque[int] = deque()
        while count > 0:
            frame = peer.answer_frame(peer.ask(Pop(ref, batch, POP_BYTES, 0, 5_000)))
            assert isinstance(frame.message, Popped)
            taken = len([record[PAYLOAD] for record in walk(frame.records)])
            assert taken
            count -= taken
            receipts = [Receipt(serial, first, number) for serial, _, first, number in frame.message.handed]
            asked.append(peer.ask(Ack(ref, receipts)))
        for request_id in asked:
            settled = peer.answer(request_id)
            assert isinstance(settled, Settled)
            assert not settled.stale
        consumer.close()

    def close(self) -> None:
        self._store.close()


class RedisStream:
    """Redis with an append-only file, synced every second or before each answer."""

    def __init__(self, folder: Path, fsync: str) -> None:
        self.port = free_port()
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        command = ["redis-server", *own, "--appendonly", "yes", "--appendfsync", fsync]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port, self.process)
        self._redis = redis.Redis(port=self.port)
        self._redis.xgroup_create("queue", GROUP, "0", mkstream=True)

    async def publish(self, payload: bytes, count: int, batch: int) -> None:
        for _ in range(count // batch):
            together = self._redis.pipeline(transaction=False)
            for _ in range(batch):
                together.xadd("queue", {"p": payload})
            together.execute()

    async def consume(self, count: int, batch: int) -> None:
        while count > 0:
            answer: Any = self._redis.xreadgroup(GROUP, "c-1", {"queue": ">"}, count=batch, block=5_000)
            ((_, found),) = answer
            assert len([fields[b"p"] for _, fields in found]) == len(found)
            self._redis.xack("queue", GROUP, *[number for number, _ in found])
            count -= len(found)

    def close(self) -> None:
        self._redis.close()
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)


class RabbitQueue:
    """RabbitMQ with one durable queue of a type: quorum or classic."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._kind = kind
        self._port, epmd_port = free_port(), free_port()
        environment = os.environ | {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        epmd = shutil.which("epmd")
        assert epmd, "epmd is missing, which comes with rabbitmq-server"
        self._processes = [self._start([epmd], environment)]
        try:
            wait_for_port(epmd_port, self._processes[0])
            self._processes.append(self._start([str(RABBITMQ)], environment))
            for attempt in range(START_ATTEMPTS):
                with suppress(RuntimeError) if attempt < START_ATTEMPTS - 1 else nullcontext():
                    wait_for_port(self._port, self._processes[1])
                    break
        except BaseException:
            self.close()
            raise

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._processes[-1]

    @staticmethod
    def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        return subprocess.Popen(command, env=environment, stdout=null, stderr=null, start_new_session=True)

    async def _channel(self) -> Channel:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Channel] = loop.create_future()

        def declared(channel: Channel) -> None:
            arguments = {"x-queue-type": self._kind}
            channel.queue_declare(
                "queue", durable=True, arguments=arguments, callback=lambda _: opened.set_result(channel)
            )

        def connected(connection: Any) -> None:
            connection.channel(on_open_callback=declared)

        AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", self._port),
            on_open_callback=connected,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
            custom_ioloop=loop,
        )
        async with asyncio.timeout(START_TIMEOUT_S):
            return await opened

    @staticmethod
    async def _leave(channel: Channel) -> None:
        closed = asyncio.Event()
        channel.connection.add_on_close_callback(lambda *_: closed.set())
        channel.connection.close()
        await closed.wait()

    async def publish(self, payload: bytes, count: int, batch: int) -> None:
        channel = await self._channel()
        confirmed, changed = 0, asyncio.Event()

        def on_confirmed(frame: Any) -> None:
            nonlocal confirmed
            assert isinstance(frame.method, pika.spec.Basic.Ack), frame
            confirmed = confirmed + 1 if not frame.method.multiple else frame.method.delivery_tag
            changed.set()

        ready = asyncio.Event()
        channel.confirm_delivery(on_confirmed, callback=lambda _: ready.set())
        await ready.wait()
        durable = pika.BasicProperties(delivery_mode=2)
        for done in range(batch, count + 1, batch):
            for _ in range(batch):
                channel.basic_publish("", "queue", payload, durable)
            while confirmed < done:
                changed.clear()
                await changed.wait()
        await self._leave(channel)

    async def consume(self, count: int, batch: int) -> None:
        channel = await self._channel()
        channel.basic_qos(prefetch_count=2 * batch)
        over = asyncio.Event()
        found = 0

        def on_message(channel: Channel, method: pika.spec.Basic.Deliver, _: object, body: bytes) -> None:
            nonlocal found
            found += 1
            if found % batch == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if found == count:
                over.set()

        channel.basic_consume("queue", on_message)
        await over.wait()
        await self._leave(channel)

    def close(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_TIMEOUT_S)
