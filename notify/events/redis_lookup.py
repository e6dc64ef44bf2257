"""The look-up table in Redis: gateways write the queues that they watch, stores keep a copy. No message depends on it.

    penstock:watched:GATEWAY   a set: the names of the queues that a gateway watches, and an empty name, which says that
                               the set is complete. It expires with the gateway's lease, which is renewed
    penstock:watched           a channel: a WatchChange (lookup.py) in msgpack for each change of such a set

A store that subscribes hears of every gateway by its next renewal, and then reads its set. Changes published meanwhile
arrive afterwards, in order, so none is missed. After any error everything begins again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from notify.errors import NotifyError
from notify.events.lookup import MOST_WATCHED, Table, WatchChange, Watched
from store.ratelimit import RateLimitedLog

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

log = logging.getLogger("penstock.redis")

CHANNEL = "penstock:watched"
WHOLE = b""  # a member of every complete set
TIMEOUT_S = 0.5  # of every request to Redis
PING_S = 0.5
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
RENEWALS = 3  # in the time of a lease
PORTION_NAMES = 500
PORTION_BYTES = 256 << 10
SCAN_COUNT = 200  # names read at a time: some milliseconds of the store's loop
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WatchChange).decode


class RedisUnusable(NotifyError):
    """Redis cannot be used as set."""


class _Link:
    """A connection to Redis, made again whenever it ends, after a growing pause. start() begins it."""

    meanwhile = ""  # what happens without it, for the log

    def __init__(self, url: str) -> None:
        """Raises RedisUnusable."""
        try:
            from redis import RedisError  # imported here, since it is an extra
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise RedisUnusable(
                "notify.redis_url is set, but the package redis is missing; pip install 'penstock[redis]', or unset it"
            ) from None

        def connect() -> Redis:
            once = Retry(NoBackoff(), 0)
            return Redis.from_url(
                url, protocol=2, retry=once, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
            )

        parts = urlsplit(url)
        self.shown = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{_port(url)}"
        try:
            connect()
        except ValueError as error:
            raise RedisUnusable(f"notify.redis_url: Redis at {self.shown} cannot be used so ({error})") from None
        self._connect: Callable[[], Redis] = connect
        self._errors = (RedisError, OSError, TimeoutError)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self.is_connected = False

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """End the connection. Until Python 3.12 asyncio.wait_for(), which redis uses, may lose a cancellation: so
        repeat it.
        """
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=TIMEOUT_S)

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        is_said = False
        while True:
            began_s = self._loop.time()
            why = await self._use_once()
            is_said = is_said and not self.is_connected
            self.is_connected = False
            self._lost()
            if not is_said:
                log.warning("Redis at %s: %s; %s until it is back", self.shown, why, self.meanwhile)
                is_said = True
            if self._loop.time() - began_s > 2 * LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _use_once(self) -> str:
        """Use one connection until it ends. Returns the reason."""
        redis = self._connect()
        try:
            await self._use(redis)
        except self._errors as error:
            return str(error) or "no answer in time"
        except Exception:  # the edge of a connection
            log.exception("Redis at %s: the connection failed in a way that was not expected", self.shown)
            return "it failed"
        finally:
            with suppress(*self._errors):
                await redis.aclose()
        return "the connection was closed"

    async def _use(self, redis: Redis) -> None:
        raise NotImplementedError

    def _lost(self) -> None:
        """The connection ended, or could not be made."""

    def _is_there(self) -> None:
        if not self.is_connected:
            self.is_connected = True
            log.info("Redis at %s: connected", self.shown)


class RedisEntry(_Link):
    """One gateway's entry in Redis."""

    meanwhile = "this gateway is told of every queue"

    def __init__(self, url: str, gateway: str, watched: Watched, lease_ms: int) -> None:
        """Raises RedisUnusable."""
        super().__init__(url)
        self._gateway = gateway
        self._key = f"{CHANNEL}:{gateway}"
        self._watched = watched
        self._lease_ms = lease_ms
        self._changed = asyncio.Event()
        watched.written_by(self)

    def watches_changed(self) -> None:
        """Write the changes in the next turn of the loop; see WatchWriter."""
        self._changed.set()

    async def close(self) -> None:
        """Take it out again: from now on no gateway is told."""
        await super().close()
        redis = self._connect()
        with suppress(*self._errors):
            await self._remove(redis)
        with suppress(*self._errors):
            await redis.aclose()

    async def _use(self, redis: Redis) -> None:
        await self._write_all(redis)
        self._is_there()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_ms / 1000 / RENEWALS):
                    await self._changed.wait()
            self._changed.clear()
            if self._watched.is_all_new or not await self._write_changes(redis):
                await self._write_all(redis)

    async def _write_all(self, redis: Redis) -> None:
        names = self._watched.names()
        await self._remove(redis)
        for part in _portions([*names, WHOLE]):
            await self._do(redis, lambda pipe, part=part: pipe.sadd(self._key, *part))  # type: ignore[misc]
        await self._do(redis, lambda pipe: self._say(pipe, WatchChange(self._gateway, self._lease_ms)))

    async def _write_changes(self, redis: Redis) -> bool:
        """Write the changes, or only renew the lease. False if the set was gone, and must be written again."""
        began, ended = self._watched.collect_changes()
        changes = [WatchChange(self._gateway, self._lease_ms, part) for part in _portions(began)]
        changes += [WatchChange(self._gateway, self._lease_ms, [], part) for part in _portions(ended)]
        for change in changes or [WatchChange(self._gateway, self._lease_ms)]:

            def write(pipe: Pipeline, change: WatchChange = change) -> None:
                if change.began:
                    pipe.sadd(self._key, *change.began)
                if change.ended:
                    pipe.srem(self._key, *change.ended)
                self._say(pipe, change)

            if not await self._do(redis, write):
                return False
        return True

    async def _remove(self, redis: Redis) -> None:
        def remove(pipe: Pipeline) -> None:
            pipe.delete(self._key)
            self._say(pipe, WatchChange(self._gateway, 0))

        await self._do(redis, remove)

    def _say(self, pipe: Pipeline, change: WatchChange) -> None:
        pipe.publish(CHANNEL, _encode(change))

    async def _do(self, redis: Redis, write: Callable[[Pipeline], object]) -> bool:
        """Run one transaction, which also renews the lease. Returns whether the set existed before."""
        async with redis.pipeline(transaction=True) as pipe:
            pipe.pexpire(self._key, self._lease_ms)
            write(pipe)
            pipe.pexpire(self._key, self._lease_ms)
            results: list[Any] = await pipe.execute()
        return bool(results[0])


class RedisTable(_Link):
    """Keeps a Table as a copy of Redis."""

    meanwhile = "every gateway is told of every queue"

    def __init__(self, url: str, is_wanted: Callable[[str], bool]) -> None:
        """`is_wanted`: whether a gateway is connected to this store. Raises RedisUnusable."""
        super().__init__(url)
        self.table = Table(self._loop.time)
        self._is_wanted = is_wanted
        self._events = RateLimitedLog(log)

    async def _use(self, redis: Redis) -> None:
        async with redis.pubsub() as channel:
            await channel.subscribe(CHANNEL)
            pinged_s = 0.0
            while True:
                said = await channel.get_message(timeout=PING_S)
                if said is not None and said["type"] == "subscribe":
                    self.table.clear()  # earlier changes were missed
                    self._is_there()
                elif said is not None and said["type"] == "message":
                    await self._heard(redis, said["data"])
                if self._loop.time() - pinged_s >= PING_S:
                    pinged_s = self._loop.time()
                    await redis.ping()
                    self.table.expire()
                    self._events.tell_left_out()

    def _lost(self) -> None:
        self.table.clear()

    async def _heard(self, redis: Redis, data: bytes) -> None:
        try:
            change = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._events.warning("lookup", "Redis at %s: something else is said on %s (%s)", self.shown, CHANNEL, error)
            return
        if self._is_wanted(change.gateway) and self.table.heard(change):
            watched = await self._read(redis, change.gateway)
            if WHOLE in watched:
                watched.discard(WHOLE)
                self.table.add(change.gateway, watched, change.lease_ms)

    async def _read(self, redis: Redis, gateway: str) -> set[bytes]:
        """The queues that a gateway watches; empty if they are more than MOST_WATCHED."""
        found: set[bytes] = set()
        cursor = 0
        while True:
            cursor, names = await redis.sscan(f"{CHANNEL}:{gateway}", cursor, count=SCAN_COUNT)
            found.update(cast(list[bytes], names))
            if len(found) > MOST_WATCHED:
                return set()
            if not cursor:
                return found


def _portions(names: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The names in lists that are short enough for one write."""
    portion: list[bytes] = []
    size_bytes = 0
    for name in names:
        portion.append(name)
        size_bytes += len(name)
        if len(portion) == PORTION_NAMES or size_bytes > PORTION_BYTES:
            yield portion
            portion, size_bytes = [], 0
    if portion:
        yield portion


def _port(url: str) -> int:
    try:
        return urlsplit(url).port or 6379
    except ValueError:
        raise RedisUnusable("notify.redis_url: its port is not one; use redis://HOST:PORT/DB") from None
