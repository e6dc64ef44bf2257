"""How many clients with a remembered password come in, and how long a right one waits during a flood of wrong ones.

    python -m tests.bench.logins [--seconds 5] [--per-s 200] [--runs 3] [rate] [flood]

Prints for `rate`: logins in a second, of as many clients at once as --clients says, and the server's CPU time for each,
which a busy machine changes less. For `flood`: how long right logins took that were not remembered, the median and the
longest, while wrong ones come from elsewhere. Exit status 1: one was longer than --limit-s.
"""

from __future__ import annotations

import itertools
import multiprocessing
import selectors
import socket
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import psutil

from gateway.auth.passwords import hashed
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Disconnect
from gateway.mqtt.properties import Properties
from tests.support.mqtt_login_flood import Flood, answer, attempt
from tests.support.server_process import PenstockServer, ServeOptions

USERS = 20
RIGHT = "right"
FIRST_S = 2
"""Of a flood, before the first right login."""
Told = SimpleQueue[tuple[int, float]]
DISCONNECT = encode(Disconnect(), 5)


@contextmanager
def server_with_users(users: list[str], settings: dict[str, object] | None = None) -> Iterator[PenstockServer]:
    """`penstock serve` with a password file in which they all have the same password."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "passwords")
        verifier = hashed(RIGHT)
        file.write_text("".join(f"{user}:{verifier}\n" for user in users))
        file.chmod(0o600)
        options = ServeOptions(settings={"auth.password_file": file, **(settings or {})})
        server = PenstockServer(Path(folder, "data"), Path(folder, "log"), options)
        try:
            yield server
        finally:
            server.kill()


# --- remembered passwords


class Login:
    """One client after another in one place: connects, hears that it is in, leaves."""

    def __init__(self, port: int, user: str, number: int, expiry_s: int) -> None:
        properties = Properties(session_expiry_interval=expiry_s or None)
        connect = Connect(
            f"{user}-{number}", 5, not expiry_s, username=user, password=RIGHT.encode(), properties=properties
        )
        self._port = port
        self._connect = encode(connect, 5)
        self.socket = self._begin()

    def _begin(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), 20)
        made.sendall(self._connect)
        return made

    def is_in(self) -> bool:
        """Its socket can be read. The next one has taken its place afterwards."""
        found = answer(self.socket) == 0
        self.socket.sendall(DISCONNECT)
        self.socket.close()
        self.socket = self._begin()
        return found


def log_in(port: int, clients: int, seconds: float, expiry_s: int, told: Told) -> None:
    """The load, in a process of its own: tells how many came in, in how many seconds."""
    users = itertools.cycle(f"user-{number}" for number in range(USERS))
    with selectors.DefaultSelector() as selector:
        for number in range(clients):
            login = Login(port, next(users), number, expiry_s)
            selector.register(login.socket, selectors.EVENT_READ, login)
        done, began_s = 0, time.monotonic()
        while (now_s := time.monotonic()) < began_s + seconds:
            for key, _ in selector.select(1):
                login = key.data
                selector.unregister(login.socket)
                done += login.is_in()
                selector.register(login.socket, selectors.EVENT_READ, login)
        told.put((done, now_s - began_s))


def cpu_s(server: PenstockServer) -> float:
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


def rates(options: Namespace) -> None:
    users = [f"user-{number}" for number in range(USERS)]
    for what, expiry_s in (("clean sessions", 0), ("sessions that are kept", 3_600)):
        with server_with_users(users) as server:
            for user in users:
                with attempt(server.port, user, RIGHT) as first:
                    assert answer(first) == 0
            for _ in range(options.runs):
                told: Told = multiprocessing.SimpleQueue()
                before = cpu_s(server)
                arguments = (server.port, options.clients, options.seconds, expiry_s, told)
                load = multiprocessing.Process(target=log_in, args=arguments)
                load.start()
                done, took_s = told.get()
                used = cpu_s(server) - before
                load.join()
                each_us = used / done * 1e6
                of_core = f"{each_us:.0f} us of CPU each: {1e6 / each_us:,.0f}/s of a core"
                print(f"{what}: {done / took_s:,.0f} logins/s, {of_core}")


# --- a flood of wrong passwords


@dataclass(frozen=True)
class Attack:
    """Where a flood comes from, and as whom; the right login is alice's, from 127.0.0.1."""

    name: str
    sources: list[str]
    user: Callable[[int], str]


MANY = [f"127.0.{x}.{y}" for x in (1, 2) for y in range(1, 101)]
ATTACKS = (
    Attack("one other address, one user", ["127.0.0.9"], lambda _: "bob"),
    Attack("one other address, a new user each time", ["127.0.0.9"], lambda number: f"stranger-{number}"),
    Attack("one other address, her name", ["127.0.0.9"], lambda _: "alice"),
    Attack("200 addresses, a new user each time", MANY, lambda number: f"stranger-{number}"),
    Attack("200 addresses, her name", MANY, lambda _: "alice"),
    Attack("her address, another user", ["127.0.0.1"], lambda _: "bob"),
    Attack("her address, a new user each time", ["127.0.0.1"], lambda number: f"stranger-{number}"),
    Attack("her address, 50 users", ["127.0.0.1"], lambda number: f"stranger-{number % 50}"),
)


def right_login_s(port: int, user: str, limit_s: float) -> float:
    """Until it is in; infinite if it is refused."""
    began_s = time.monotonic()
    with attempt(port, user, RIGHT) as connection:
        connection.settimeout(limit_s * 10)
        return time.monotonic() - began_s if answer(connection) == 0 else float("inf")


def floods(options: Namespace) -> bool:
    """Whether all right logins were in time. Each is the first of a new server, so none is remembered."""
    are_in_time = True
    for attack in ATTACKS:
        took: list[float] = []
        for _ in range(options.runs):
            with (
                server_with_users(["alice", "bob"]) as server,
                Flood(server.port, attack.sources, attack.user, options.per_s, options.patience_s) as flood,
            ):
                while flood.sent < FIRST_S * options.per_s:
                    time.sleep(0.01)
                took.append(right_login_s(server.port, "alice", options.limit_s))
        longest = max(took)
        are_in_time &= longest <= options.limit_s
        print(f"{attack.name}: median {statistics.median(took):.2f} s, longest {longest:.2f} s")
    return are_in_time


def main() -> int:
    parser = ArgumentParser(description="Logins of remembered clients, and right ones during a flood of wrong ones.")
    parser.add_argument("what", nargs="*", choices=["rate", "flood", []], help="both by default")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of a run of logins (default: 5)")
    parser.add_argument("--clients", type=int, default=64, help="that log in at once (default: 64)")
    parser.add_argument("--per-s", type=int, default=200, help="wrong logins in a second (default: 200)")
    parser.add_argument("--patience-s", type=float, default=10, help="how long wrong ones wait (default: 10)")
    parser.add_argument("--limit-s", type=float, default=2.0)
    options = parser.parse_args()
    what = options.what or ["rate", "flood"]
    if "rate" in what:
        rates(options)
    return 0 if "flood" not in what or floods(options) else 1


if __name__ == "__main__":
    sys.exit(main())
