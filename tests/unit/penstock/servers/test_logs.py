"""Log lines: one per event whatever clients send, as many as anybody can read, in both forms."""

import io
import json
import logging
import socket
import sys
from collections.abc import Callable, Iterator

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Will
from gateway.mqtt.reason_codes import ReasonCode
from penstock.servers.logs import set_up_logging
from store.ratelimit import LINES_PER_SECOND, VALUE_CHARACTERS, RateLimitedLog
from tests.conftest import ServerFactory
from tests.support.mqtt_bench import Bench
from tests.unit.conftest import StartBench

NASTY = "a\nb\r\x1b[2K\x00\x7f\x85\u2028\u202e"
ESCAPED = r"a\nb\r\x1b[2K\x00\x7f\x85\u2028\u202e"

StartLogging = Callable[[str, str], io.StringIO]


@pytest.fixture
def start_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartLogging]:
    """Sets logging up as the server does; gives what is written to standard error."""
    roots = [logging.getLogger(name) for name in ("penstock", "asyncio")]
    before = [(root.handlers[:], root.level, root.propagate) for root in roots]

    def start(level: str, form: str) -> io.StringIO:
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        set_up_logging(level, form)
        return written

    yield start
    for root, (handlers, level_before, propagate) in zip(roots, before, strict=True):
        root.handlers[:] = handlers
        root.setLevel(level_before)
        root.propagate = propagate


def messages(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == event]


@pytest.fixture
def caught(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "penstock")
    return caplog


# --- form


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_event_is_one_line_whatever_is_in_it(start_logging: StartLogging, form: str) -> None:
    written = start_logging("info", form)
    logging.getLogger("penstock.gateway").warning("client %s", NASTY)
    assert written.getvalue().count("\n") == 1
    assert len(written.getvalue().splitlines()) == 1


def test_text_shows_what_it_escapes(start_logging: StartLogging) -> None:
    written = start_logging("info", "text")
    logging.getLogger("penstock.gateway").warning("client %s of Zoë", NASTY)
    assert written.getvalue().endswith(f" WARNING penstock.gateway: client {ESCAPED} of Zoë\n")


def test_json_keeps_what_it_escapes(start_logging: StartLogging) -> None:
    written = start_logging("info", "json")
    RateLimitedLog(logging.getLogger("penstock.gateway")).warning("input", "client %s of Zoë", NASTY)
    line = json.loads(written.getvalue())
    assert line["message"] == f"client {NASTY} of Zoë"
    assert (line["level"], line["logger"], line["event"]) == ("warning", "penstock.gateway", "input")
    assert "Zoë" in written.getvalue()


def test_lone_surrogates_do_not_break_a_line(start_logging: StartLogging) -> None:
    for form in ("text", "json"):
        written = start_logging("info", form)
        logging.getLogger("penstock").info("file %s", "\udcff")
        assert written.getvalue().encode().rstrip().endswith((b"file \\udcff", b'file \\udcff"}'))


def test_a_traceback_in_text_cannot_pass_for_events(start_logging: StartLogging) -> None:
    written = start_logging("info", "text")
    try:
        raise ValueError("first\n2026-01-01 00:00:00,000 INFO    penstock: started\x1b[0m")
    except ValueError:
        logging.getLogger("penstock").exception("failed")
    event, *rest = written.getvalue().splitlines()
    assert event.endswith("ERROR   penstock: failed")
    assert all(line.startswith("  | ") for line in rest)
    assert rest[-1].endswith(r"started\x1b[0m")


def test_a_traceback_in_json_is_part_of_the_object(start_logging: StartLogging) -> None:
    written = start_logging("info", "json")
    try:
        raise ValueError("one\ntwo")
    except ValueError:
        logging.getLogger("penstock").exception("failed")
    line = json.loads(written.getvalue())
    assert line["message"] == "failed"
    assert line["traceback"].endswith("ValueError: one\ntwo")


@pytest.mark.parametrize(("level", "shown"), [("debug", "dwe"), ("info", "we"), ("warning", "we"), ("error", "e")])
def test_the_level(start_logging: StartLogging, level: str, shown: str) -> None:
    written = start_logging(level, "json")
    log = logging.getLogger("penstock.gateway")
    log.debug("d")
    RateLimitedLog(log).warning("input", "w")
    log.error("e")
    assert "".join(json.loads(line)["message"] for line in written.getvalue().splitlines()) == shown


# --- how many


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def log_clock() -> Clock:
    return Clock()


@pytest.fixture
def events(log_clock: Clock, caught: pytest.LogCaptureFixture) -> RateLimitedLog:
    return RateLimitedLog(logging.getLogger("penstock.gateway"), log_clock)


def burst(events: RateLimitedLog, kind: str, lines: int) -> None:
    for i in range(lines):
        events.info(kind, "%s %d", kind, i)


def test_a_burst_is_cut_and_its_end_says_by_how_much(
    events: RateLimitedLog, log_clock: Clock, caught: pytest.LogCaptureFixture
) -> None:
    burst(events, "input", LINES_PER_SECOND + 7)
    assert messages(caught, "input") == [f"input {i}" for i in range(LINES_PER_SECOND)]
    log_clock.now_s += 0.9
    events.tell_left_out()
    assert len(messages(caught, "input")) == LINES_PER_SECOND
    log_clock.now_s += 0.1
    events.tell_left_out()
    events.tell_left_out()
    assert messages(caught, "input")[LINES_PER_SECOND:] == ["7 more lines of the kind input were left out"]


def test_a_burst_that_goes_on_is_counted_every_second(
    events: RateLimitedLog, log_clock: Clock, caught: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        burst(events, "input", LINES_PER_SECOND + 1)
        log_clock.now_s += 1
    events.close()
    left_out = [message for message in messages(caught, "input") if "left out" in message]
    assert left_out == ["1 more lines of the kind input were left out"] * 3
    assert len(messages(caught, "input")) == 3 * (LINES_PER_SECOND + 1)


def test_kinds_do_not_take_each_others_lines(events: RateLimitedLog, caught: pytest.LogCaptureFixture) -> None:
    burst(events, "input", 1_000)
    burst(events, "connected", 3)
    assert len(messages(caught, "connected")) == 3


def test_few_lines_say_nothing_of_limits(
    events: RateLimitedLog, log_clock: Clock, caught: pytest.LogCaptureFixture
) -> None:
    burst(events, "input", LINES_PER_SECOND)
    log_clock.now_s += 5
    events.tell_left_out()
    assert len(messages(caught, "input")) == LINES_PER_SECOND


def test_long_values_are_cut(events: RateLimitedLog, caught: pytest.LogCaptureFixture) -> None:
    events.info("input", "client %s", "x" * 60_000)
    assert messages(caught, "input") == [f"client {'x' * VALUE_CHARACTERS}…"]


# --- the events


def test_a_client_comes_and_leaves(bench: Bench, caught: pytest.LogCaptureFixture) -> None:
    client = bench.connect("device")
    client.disconnect()
    assert messages(caught, "connected") == ["client device connected from 192.0.2.1:40000"]
    assert messages(caught, "disconnected") == ["client device disconnected: it sent DISCONNECT"]


def test_a_connection_is_lost(bench: Bench, caught: pytest.LogCaptureFixture) -> None:
    bench.connect("one").lose()
    bench.connect("other").connection.connection_lost(OSError(104, "Connection reset by peer"))
    assert messages(caught, "disconnected") == [
        "client one disconnected: connection lost",
        "client other disconnected: connection lost ([Errno 104] Connection reset by peer)",
    ]


def test_a_session_is_taken_over(bench: Bench, caught: pytest.LogCaptureFixture) -> None:
    bench.connect("device")
    bench.connect("device")
    assert messages(caught, "taken-over") == ["session of client device taken over"]
    assert messages(caught, "disconnected") == ["client device disconnected: session taken over"]


def test_a_session_expires(bench: Bench, caught: pytest.LogCaptureFixture) -> None:
    bench.durable("device", session_expiry_interval=5).lose()
    bench.pass_time(6)
    assert messages(caught, "expired") == ["session of client device expired"]


def test_a_will_is_sent(bench: Bench, caught: pytest.LogCaptureFixture) -> None:
    bench.connect("device", will=Will("gone/device", b"bye")).lose()
    assert messages(caught, "will") == ["will of client device sent to gone/device"]


def test_bad_input_is_one_line_and_one_reason_to_disconnect(bench: Bench, caught: pytest.LogCaptureFixture) -> None:
    client = bench.connect("device")
    client.send(Connect("device"))
    (line,) = messages(caught, "input")
    assert line.startswith("192.0.2.1:40000: ")
    assert line.endswith(f"({ReasonCode.PROTOCOL_ERROR.name})")
    assert len(messages(caught, "disconnected")) == 1


def test_connection_without_connect_leaves_no_log_line(bench: Bench, caught: pytest.LogCaptureFixture) -> None:
    bench.client().lose()
    assert caught.records == []


def test_the_broker_says_itself_how_many_lines_were_left_out(
    bench: Bench, caught: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_clock = Clock()
    monkeypatch.setattr(bench.broker.core.events, "_clock", log_clock)
    for i in range(LINES_PER_SECOND + 2):
        bench.connect(f"device-{i}")
    log_clock.now_s += 1
    bench.pass_time(1)
    assert messages(caught, "connected")[-1] == "2 more lines of the kind connected were left out"


# --- a whole process


def test_the_log_of_a_life_is_one_object_per_line(penstock_server: ServerFactory) -> None:
    server = penstock_server(log_format="json", log_level="debug")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(encode(Connect("device"), 5))
        connection.recv(100)
        server.terminate()
    lines = [json.loads(line) for line in server.log_text().splitlines()]
    shown = [line["message"].split(" ")[0] for line in lines if line.get("event") != "ready"]
    assert shown == ["penstock", "no", "started", "client", "stopping:", "draining:", "client", "drained:", "stopped"]
    (ready,) = (line for line in lines if line.get("event") == "ready")
    assert (ready["url"], ready["data"]) == (server.url, str(server.data))


def test_the_log_of_a_life_as_text(penstock_server: ServerFactory) -> None:
    server = penstock_server(log_level="warning")
    server.terminate()
    assert [line for line in server.log_text().splitlines() if not line.startswith("ready ")] == []


@pytest.mark.parametrize("version", [4, 5])
def test_a_packet_above_the_limit_is_named_with_the_limit(
    start_bench: StartBench, caught: pytest.LogCaptureFixture, version: int
) -> None:
    """A client of MQTT 3.1.1 cannot be told: the log is where its owner looks."""
    client = start_bench(maximum_packet_size_bytes=1_024).connect("device", version)
    client.send_bytes(b"\x30\xfe\x07")  # 1,025 bytes with the fixed header
    fault = "PUBLISH of 1025 bytes is larger than gateway.maximum_packet_size_bytes = 1024"
    assert messages(caught, "input") == [f"192.0.2.1:40000: {fault} (PACKET_TOO_LARGE)"]
    assert messages(caught, "disconnected") == [f"client device disconnected: {fault}"]
