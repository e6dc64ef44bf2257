"""The admin pages without a socket, and what they say when the loop does not answer."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.mqtt.reason_codes import ReasonCode
from gateway.observe.metrics import read_steps
from penstock.servers.admin import SILENT_S, AdminApp, LoopSilent, LoopSource, LoopWatch
from tests.support.mqtt_bench import TIMEOUT_S, Bench


class HeldLoop:
    """Runs what other threads ask of it when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.now_s = 100.0
        self.closed = False

    def call_soon_threadsafe(self, callback: Callable[..., object], *values: object) -> None:
        self.calls.append(lambda: callback(*values))

    def is_closed(self) -> bool:
        return self.closed

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def loop() -> HeldLoop:
    return HeldLoop()


@pytest.fixture
def watch(loop: HeldLoop) -> LoopWatch:
    return LoopWatch(loop, lambda: loop.now_s)  # type: ignore[arg-type]


@pytest.fixture
def app(bench: Bench, watch: LoopWatch) -> AdminApp:
    return AdminApp(source(bench), watch)


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.servers.admin.ANSWER_S", 0.01)


def source(bench: Bench) -> LoopSource:
    return LoopSource(lambda: read_steps(bench.broker, bench.hub), bench.broker.unready)


def get(app: AdminApp, page: str, method: str = "GET") -> tuple[str, str]:
    """(status, text)."""
    status: list[str] = []

    def start_response(line: str, _: list[tuple[str, str]], *__: Any) -> Any:
        status.append(line)

    body = b"".join(app({"PATH_INFO": page, "REQUEST_METHOD": method}, start_response))
    return status[0], body.decode()


class TurningLoop:
    """A real loop in a thread, for what waits for an answer."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()


@pytest.fixture
def turning() -> Iterator[TurningLoop]:
    turning = TurningLoop()
    yield turning
    turning.close()


def test_healthy_while_the_loop_turns(app: AdminApp, watch: LoopWatch, loop: HeldLoop) -> None:
    for _ in range(10):
        watch.check()
        loop.now_s += SILENT_S - 0.1
        assert get(app, "/healthz") == ("200 OK", "ok\n")
        loop.turn()


def test_not_healthy_once_it_has_not_turned_for_too_long(app: AdminApp, watch: LoopWatch, loop: HeldLoop) -> None:
    for _ in range(20):
        watch.check()
        loop.now_s += 0.5
    assert get(app, "/healthz") == ("503 Service Unavailable", "the loop has not turned for 10 s\n")
    assert len(loop.calls) == 1, "what it is asked must not pile up"
    loop.turn()
    assert get(app, "/healthz")[0] == "200 OK"


@pytest.mark.parametrize("page", ["/metrics", "/readyz"])
def test_admin_pages_of_a_stuck_loop_are_unavailable(app: AdminApp, loop: HeldLoop, page: str) -> None:
    loop.now_s += SILENT_S + 1
    assert get(app, page) == ("503 Service Unavailable", "the loop has not turned for 6 s\n")
    assert loop.calls == []


@pytest.mark.usefixtures("short_wait")
def test_a_busy_loop_is_not_waited_for(app: AdminApp, loop: HeldLoop) -> None:
    status, text = get(app, "/readyz")
    assert (status, "did not answer" in text) == ("503 Service Unavailable", True)
    loop.turn()  # too late: nobody waits any more


def test_a_closed_loop_is_silent(watch: LoopWatch, loop: HeldLoop) -> None:
    loop.closed = True
    watch.check()
    assert loop.calls == []
    with pytest.raises(LoopSilent):
        watch.ask(lambda: 1)


def test_the_loop_answers(turning: TurningLoop) -> None:
    names = LoopWatch(turning.loop).ask(lambda: threading.current_thread())
    assert names is not threading.current_thread()


def test_an_error_in_the_answer_is_the_askers_and_the_loops(turning: TurningLoop) -> None:
    reported: list[Any] = []
    turning.loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail() -> None:
        raise KeyError("wrong")

    with pytest.raises(KeyError, match="wrong"):
        LoopWatch(turning.loop).ask(fail)
    LoopWatch(turning.loop).ask(lambda: None)  # the loop goes on
    assert [type(error) for error in reported] == [KeyError]


def test_ready_says_why_not(bench: Bench, turning: TurningLoop) -> None:
    app = AdminApp(source(bench), LoopWatch(turning.loop))
    assert get(app, "/readyz") == ("503 Service Unavailable", "not listening yet\n")
    bench.broker.listening()
    assert get(app, "/readyz") == ("200 OK", "ready\n")
    bench.broker.drain(ReasonCode.SERVER_SHUTTING_DOWN)
    assert get(app, "/readyz") == ("503 Service Unavailable", "stopping\n")
    assert get(app, "/healthz") == ("200 OK", "ok\n")


def test_other_pages_and_methods(app: AdminApp) -> None:
    assert get(app, "/nothing")[0] == "404 Not Found"
    assert get(app, "/healthz", "POST")[0] == "405 Method Not Allowed"
