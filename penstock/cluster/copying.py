"""Copies the log of the store that leads, in a thread, for one whose disk is empty or whose mark Kafka has no more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from notify.links.address import StoreAddress
from penstock.cluster.errors import NoStoreToCopy
from penstock.cluster.progress import ClusterProgress
from penstock.config.credentials import tls_of_gateway, token_of_operator
from penstock.config.settings import Settings
from penstock.errors import PenstockError
from penstock.kafka_place import KafkaPlace
from penstock.store_client import StoreClient
from store.errors import CopyDamaged, NoSuchCopy, StoreError
from store.log.giving import GivenCheckpoint, GivenLog
from store.mending.taking import CopyProgress, LogCopy, OwnLog
from store.ratelimit import RateLimitedLog
from store.records._records import crc32c
from store.replication.frames import Leader
from store.replication.judging import ReplicaMark
from store.wire.base import WireMessage
from store.wire.copy_messages import AskCopy, CopiedMark, CopyCheckpoint, CopyOffered, CopyPiece, CopySegment
from store.wire.handshake import COPY_VERSION
from store.wire.messages import Failed, FailureCode, Role

log = logging.getLogger("penstock.cluster")

AGAIN_S: Final = (1.0, 1.0, 2.0, 5.0)  # after attempts that failed, and so on
IDLE_S: Final = 3_600.0  # the connection stays while what was copied is verified
PIECE_BYTES: Final = 1 << 20

M = TypeVar("M", bound=WireMessage)


class CopyStopped(PenstockError):
    """This store is to stop."""


class LeaderLog:
    """GivesLog (store.mending.taking) over a connection. Every method raises PenstockError, and NoSuchCopy."""

    def __init__(self, store: StoreClient, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self._store = store
        self._is_stopping = is_stopping

    def given(self) -> GivenLog:
        first = last = self._ask(AskCopy(0), CopyOffered)
        segments = list(first.segments)
        while last.more:
            last = self._ask(AskCopy(segments[-1] + 1), CopyOffered)
            segments += last.segments
        return GivenLog(
            first.topic_id,
            first.identity,
            _mark(first.mark),
            first.base,
            [base for base in segments if base < first.mark.accepted],
            False,
            GivenCheckpoint(first.checkpoint, first.files),
        )

    def segment(self, base: int, at: int) -> bytes:
        return self._piece(CopySegment(base, at, PIECE_BYTES), f"segment {base}")

    def checkpoint(self, name: str, file: str, at: int) -> bytes:
        return self._piece(CopyCheckpoint(name, file, at, PIECE_BYTES), "the index's checkpoint")

    def _piece(self, request: CopySegment | CopyCheckpoint, what: str) -> bytes:
        answer = self._ask(request, CopyPiece)
        if crc32c(answer.data) != answer.checksum:
            raise CopyDamaged(what, "a piece has come with another checksum")
        return answer.data

    def _ask(self, request: WireMessage, kind: type[M]) -> M:
        if self._is_stopping():
            raise CopyStopped("the store stops")
        answer, _ = self._store.ask(request, WireMessage)
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Failed) and answer.code == FailureCode.NO_SUCH_POSITION:
            raise NoSuchCopy(answer.message)
        raise PenstockError(answer.message if isinstance(answer, Failed) else f"it answered {type(answer).__name__}")


def _mark(told: CopiedMark) -> ReplicaMark:
    leader = Leader(told.address, told.process) if told.address else None
    return ReplicaMark(told.offset, told.checksum, told.epoch, told.accepted, leader)


def other_stores(place: KafkaPlace, names: Sequence[str], own_name: str) -> StoreAddress:
    """The other stores' addresses as they have told Kafka, the newest leader's first. Raises PenstockError."""
    progress = ClusterProgress(place)
    known = [each for each in sorted({*names, *progress.names()}) if each != own_name]
    reports = [each.report for each in progress.of(known) if each.report is not None]
    reports.sort(key=lambda report: (report.is_leading, report.epoch), reverse=True)
    addresses = list(dict.fromkeys(report.address for report in reports))
    if not addresses:
        raise NoStoreToCopy(place.topic, "no other store has told Kafka where it is")
    scheme, _, _ = addresses[0].partition("://")
    places = [each.partition("://")[2] for each in addresses if each.startswith(f"{scheme}://")]
    return StoreAddress.parse(f"{scheme}://{','.join(places)}")


def connect_to_leader(settings: Settings, address: StoreAddress) -> StoreClient:
    """Raises PenstockError."""
    token = token_of_operator(settings.wire)
    if not token:
        raise PenstockError("a store is copied by operators alone: set wire.operator_token, the same in all stores")
    tls = tls_of_gateway(address, settings.gateway) if address.is_tls else None
    store = StoreClient(address, token, tls, Role.OPERATOR, IDLE_S)
    if store.version < COPY_VERSION:
        store.close()
        raise PenstockError(f"{address.url}: the store is too old to be copied; upgrade it first")
    return store


class CopyTask(NamedTuple):
    """What is to be copied. `own_name`: of this store in its cluster; `least`: log_offset up to which it has accepted
    the log, so a copy that ends before is none; `own`: what of the log need not come.
    """

    place: KafkaPlace
    topic_id: str
    own_name: str
    least: int
    own: OwnLog | None


class CopyThread:
    """Owner of the thread that copies, until all is there or stop() is called."""

    def __init__(self, settings: Settings, task: CopyTask) -> None:
        self._settings = settings
        self._task = task
        self._events = RateLimitedLog(log)
        self._stopping = threading.Event()
        self._attempts = 0
        self._taking: LogCopy | None = None
        self.is_complete = False
        self.error: Exception | None = None  # that nobody foresaw
        self._thread = threading.Thread(target=self._run, name="penstock-copy", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def progress(self) -> CopyProgress:
        """For any thread."""
        taking = self._taking
        return taking.progress if taking is not None else CopyProgress("", 0, 0)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not (self.is_complete or self._stopping.is_set()):
                self._try()
                self._attempts += 1
        except Exception as error:
            self.error = error
            raise

    def _try(self) -> None:
        try:
            address = other_stores(self._task.place, self._settings.cluster.stores, self._task.own_name)
            with connect_to_leader(self._settings, address) as store:
                self._copy(address.url, store)
        except CopyStopped:
            return
        except (PenstockError, StoreError) as error:
            self._events.warning("copy", "the log of another store is not copied yet: %s", error)
            self._stopping.wait(AGAIN_S[min(self._attempts, len(AGAIN_S) - 1)])

    def _copy(self, url: str, store: StoreClient) -> None:
        data: Path = self._settings.store.data
        self._taking = copy = LogCopy(data, LeaderLog(store, self._stopping.is_set), self._task.own)
        taken = copy.take(self._task.topic_id)
        end, least = taken.given.mark.accepted, self._task.least
        if end < least:
            raise PenstockError(f"{url}: has it up to log_offset {end}, and this store has accepted it up to {least}")
        copy.commit()
        log.info(
            "copied the log of %s up to log_offset %d: %d bytes came from there",
            *(url, end, taken.copied_bytes),
        )
        self.is_complete = True
