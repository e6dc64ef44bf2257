"""A real Redis without a disk, which can be killed, stopped and started again on the same port."""

import shutil
import signal
import subprocess
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.ports import STOP_TIMEOUT_S, free_port, wait_for_port

REDIS = shutil.which("redis-server")


class RedisServer:
    """One process; it listens once constructed."""

    def __init__(self, folder: Path) -> None:
        if REDIS is None:
            raise LoadTestError("redis-server is missing; apt-get install redis-server")
        self.port = free_port()
        self._folder = folder
        self.process: subprocess.Popen[bytes]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command = [REDIS or "redis-server", *own, "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        wait_for_port(self.port, self.process)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Send SIGSTOP: its sockets stay open, and it sends nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
