"""A start that takes long says how far it is: in the log, and to those that ask the admin endpoint meanwhile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lightqueue import opening
from lightqueue.message_store import MessageStore
from penstock.servers.admin import AdminApp, LoopSilent, LoopSource, LoopWatch
from penstock.servers.starting import REPORT_S, Starting
from tests.support.stores import commit_log, publish, small


class StuckLoop:
    """As a loop is to other threads while its thread builds an index."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *values: object) -> None:
        pass

    def is_closed(self) -> bool:
        return False


def get(app: AdminApp, page: str) -> tuple[str, str]:
    told: list[str] = []
    environ = {"PATH_INFO": page, "REQUEST_METHOD": "GET"}
    body = b"".join(app(environ, lambda status, *_: told.append(status)))  # type: ignore[arg-type]
    return told[0], body.decode().strip()


def ask() -> str:
    raise LoopSilent("the loop was asked")


def test_pages_while_the_loop_does_not_turn() -> None:
    now_s = 0.0
    starting = Starting(lambda: now_s)
    watch = LoopWatch(StuckLoop(), lambda: now_s)  # type: ignore[arg-type]
    app = AdminApp(LoopSource(lambda: iter(()), ask, how_far=lambda: starting.text), watch)
    now_s = 100.0
    assert get(app, "/healthz") == ("200 OK", "ok; starting")
    starting.replayed(300 << 20, 1_200 << 20)
    text = "starting: replaying 1200 MiB of the log into the index, 25 % done"
    assert get(app, "/healthz") == ("200 OK", f"ok; {text}")
    assert get(app, "/readyz") == ("503 Service Unavailable", text)
    assert "process_cpu_seconds" in get(app, "/metrics")[1]
    starting.is_over()
    assert get(app, "/healthz")[0] == "503 Service Unavailable"  # the loop is stuck indeed
    assert get(app, "/readyz") == ("503 Service Unavailable", "the loop has not turned for 100 s")


def test_a_store_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "REPLAY_BYTES", 100_000)
    store = MessageStore(small(tmp_path / "data"))
    for _ in range(100):
        publish(store, "t/x", bytes(10_000))
    end = store.log.end - store.log.first
    commit_log(store).flusher.flush_now()
    store.log.close()  # and no more, as if it was killed
    store.index.close()
    store.folder.close()
    now_s = 0.0
    starting = Starting(lambda: now_s)
    told: list[tuple[int, int]] = []

    def replayed(done_bytes: int, of_bytes: int) -> None:
        nonlocal now_s
        now_s += REPORT_S / 3
        told.append((done_bytes, of_bytes))
        starting.replayed(done_bytes, of_bytes)

    with caplog.at_level("INFO", "penstock"):
        MessageStore(small(tmp_path / "data"), on_replayed=replayed).close()
    assert len(told) >= 8
    assert told == sorted(told)
    assert end <= told[-1][0] <= told[-1][1]
    assert "% done" in caplog.text
    assert 2 <= caplog.text.count("% done") <= len(told) // 2
