"""A RabbitMQ server as a subprocess, with an Erlang port mapper of its own, for tests of what talks AMQP."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from loadtest.ports import HOST, STOP_TIMEOUT_S, free_port, wait_for_port
from tests.support.certificates import authority, vouched_for

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on PATH would have root run it as another user
NODE = "penstock@localhost"
MOST_MESSAGE_BYTES = 300_000
START_TIMEOUT_S = 240  # it takes five CPU-seconds or more, on a machine that may be busy
SOME_MEMORY, NO_MEMORY = "0.4", "0.0"
"""Part of the machine's memory above which RabbitMQ blocks those who publish."""
SOME_DISK, NO_DISK = "50000000", "1000000000000000000"
"""Bytes of the disk that have to be free; below that RabbitMQ blocks those who publish."""


def missing_for_rabbitmq() -> str:
    """What is missing here, with the remedy; empty if nothing is."""
    return "" if SERVER.exists() and shutil.which("epmd") else "RabbitMQ is missing; apt-get install rabbitmq-server"


class RabbitMqBroker:
    """Started when it is made; start() begins it again on the same folder and ports. Its user is guest."""

    def __init__(self, folder: Path) -> None:
        self.port, self.tls_port = free_port(), free_port()
        self.url = f"{HOST}:{self.port}"
        self.authority, self.stranger = authority(folder, "amqp-authority"), authority(folder, "amqp-stranger")
        server = vouched_for(folder, "amqp-server", f"IP:{HOST}", self.authority)
        self._log = folder / "rabbitmq.log"
        self._folder = folder
        (folder / "plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.ssl.default = {HOST}:{self.tls_port}\n"
            f"ssl_options.cacertfile = {self.authority.certificate}\n"
            f"ssl_options.certfile = {server.certificate}\n"
            f"ssl_options.keyfile = {server.key}\n"
            f"max_message_size = {MOST_MESSAGE_BYTES}\n"
            "log.console = true\nlog.console.level = warning\n"
        )
        mapper_port = free_port()
        self._environment = os.environ | {
            "HOME": str(folder),  # of the cookie
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(mapper_port),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        }
        self._mapper = self._popen("epmd", "-port", str(mapper_port))
        self.process: subprocess.Popen[bytes]
        try:
            wait_for_port(mapper_port, self._mapper)
            self.start()
        except BaseException:
            self._mapper.kill()
            self._mapper.wait(STOP_TIMEOUT_S)
            raise

    def _popen(self, *command: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self) -> None:
        """Returns when the broker can be used."""
        self.process = self._popen(str(SERVER))
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                if self.process.poll() is not None:
                    raise RuntimeError(f"RabbitMQ exited with {self.process.returncode}:\n{self.log_text()}")
                with suppress(AMQPError, OSError), self.channel():
                    return
                time.sleep(0.05)
            raise RuntimeError(f"RabbitMQ cannot be used after {START_TIMEOUT_S} s:\n{self.log_text()}")
        except BaseException:
            self.kill()
            raise

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        """Of pika, another client than the flows have."""
        connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, self.port, heartbeat=0))
        try:
            yield connection.channel()
        finally:
            with suppress(AMQPError):
                connection.close()

    def make(self, exchange: str, bound: Mapping[str, str]) -> None:
        """A topic exchange, and durable queues by name, each with the routing keys that it takes."""
        with self.channel() as channel:
            channel.exchange_declare(exchange, "topic", durable=True)
            for queue, routing_key in bound.items():
                channel.queue_declare(queue, durable=True)
                channel.queue_bind(queue, exchange, routing_key)

    def set_memory(self, part: str) -> None:
        """SOME_MEMORY or NO_MEMORY."""
        self._call(f"vm_memory_monitor, set_vm_memory_high_watermark, [{part}]")

    def set_disk(self, free_bytes: str) -> None:
        """SOME_DISK or NO_DISK."""
        self._call(f"rabbit_disk_monitor, set_disk_free_limit, [{free_bytes}]")

    def add_user(self, user: str, password: str) -> None:
        """A user who may do nothing."""
        self._call(f'rabbit_auth_backend_internal, add_user, [<<"{user}">>, <<"{password}">>, <<"test">>]')
        self.permit(user, write="^$", read="^$")

    def permit(self, user: str, write: str, read: str) -> None:
        """`write`, `read`: patterns of the exchanges and queues."""
        patterns = ", ".join(f'<<"{pattern}">>' for pattern in ("^$", write, read))
        self._call(f'rabbit_auth_backend_internal, set_permissions, [<<"{user}">>, <<"/">>, {patterns}, <<"test">>]')

    def _call(self, function: str) -> None:
        """As rabbitmqctl does: a module, a function and its arguments, which returns ok."""
        cookie = (self._folder / ".erlang.cookie").read_text()
        call = f"rpc:call('{NODE}', {function})"
        command = ["erl", "-sname", "by-hand@localhost", "-hidden", "-setcookie", cookie, "-noinput"]
        subprocess.run(
            [*command, "-eval", f"ok = {call}, halt()."],
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=START_TIMEOUT_S,
        )

    def kill(self) -> None:
        """SIGKILL: nothing is flushed or closed."""
        os.killpg(self.process.pid, signal.SIGKILL)  # a shell, and the server below it
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """SIGSTOP: its sockets stay open, and it answers nothing."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._mapper.kill()
        self._mapper.wait(STOP_TIMEOUT_S)
