"""publish() and send() of the blocking client: their order, and what ends a call that waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from penstock.sdk import bell, loop_thread, room
from penstock.sdk.errors import BadMessage, ClientClosed, TimedOut
from penstock.sync import Client
from tests.interop.programs import TIMEOUT_S
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

PAYLOAD = bytes(400)


def unanswered(client: Client) -> int:
    return client._client._unanswered_bytes


def held(client: Client) -> int:
    return len(client._handover._held)


@contextmanager
def interrupting(handler: Callable[[int, FrameType | None], Any], is_time: Callable[[], object]) -> Iterator[None]:
    """The main thread gets a signal once it is time for that."""
    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(lambda: bool(is_time()))
        signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_message_needs_no_task(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(url) as client:
        with monkeypatch.context() as patched:
            patched.delattr(asyncio, "run_coroutine_threadsafe")
            assert client.publish("t", b"0").queue_offset == 0
            assert client.send("t", b"1").result(TIMEOUT_S).queue_offset == 1
        assert [message.payload for message in client.read("t")] == [b"0", b"1"]


@pytest.mark.parametrize("has_events", [True, False])
def test_calls_of_a_thread_keep_their_order(url: str, monkeypatch: pytest.MonkeyPatch, has_events: bool) -> None:
    for module in () if has_events else (bell, loop_thread):
        monkeypatch.setattr(module, "HAS_EVENTS", False)

    def publish(name: str) -> list[int | None]:
        sent: list[concurrent.futures.Future[Any]] = []
        offsets: list[int | None] = []
        for number in range(0, 100, 5):
            sent.append(client.send(name, b"%d" % number))
            sent.append(client.send(name, b"%d" % (number + 1)))
            offsets.append(client.publish(name, b"%d" % (number + 2)).queue_offset)
            sent.append(client.send(name, b"%d" % (number + 3)))
            many = client.publish_many([(name, b"%d" % (number + 4))])
            offsets += [future.result(TIMEOUT_S).queue_offset for future in sent[-3:]]
            offsets.append(many[0].queue_offset)
        return offsets

    names = [f"order/{number}" for number in range(4)]
    with Client(url) as client, concurrent.futures.ThreadPoolExecutor(4) as threads:
        for offsets in threads.map(publish, names):
            assert sorted(offset for offset in offsets if offset is not None) == list(range(100))
        for name in names:
            assert [message.payload for message in client.read(name)] == [b"%d" % number for number in range(100)]


def test_a_thread_without_a_file_to_spare(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: int, __: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with Client(url) as client, concurrent.futures.ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(os, "eventfd", none)
        assert threads.submit(client.publish, "t", b"x").result(TIMEOUT_S).queue_offset == 0
        assert threads.submit(client.publish, "t", b"x").result(TIMEOUT_S).queue_offset == 1


def test_a_forked_process_is_not_woken_by_its_parent(url: str) -> None:
    def publish() -> None:
        for _ in range(200):
            client.publish("t", b"x")

    with Client(url, timeout_s=TIMEOUT_S) as client:
        client.publish("t", b"x")
        child = multiprocessing.get_context("fork").Process(target=publish)
        child.start()
        publish()
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
        assert client.publish("t", b"x").queue_offset == 401


def test_order_while_there_is_no_room(url: str, running: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_UNANSWERED_BYTES", 2_000)
    with Client(url) as client, concurrent.futures.ThreadPoolExecutor(1) as threads:
        running.pause()
        sent = [client.send("t", b"%d" % number + PAYLOAD) for number in range(10)]
        wait_until(lambda: held(client) > 0)
        assert sent[8].cancel()
        small = client.send("t", b"small")  # there is room for it: it waits all the same
        waiting = threads.submit(client.publish, "t", b"last")
        wait_until(lambda: held(client) >= 7)
        running.resume()
        assert waiting.result(TIMEOUT_S).queue_offset == 10
        assert small.result(TIMEOUT_S).queue_offset == 9
        assert concurrent.futures.wait(sent, TIMEOUT_S).not_done == set()
        found = [message.payload.replace(PAYLOAD, b"") for message in client.read("t")]
        assert found == [*(b"%d" % number for number in range(10) if number != 8), b"small", b"last"]
        assert held(client) == unanswered(client) == 0


def test_a_call_that_times_out(url: str, running: StoreProcess) -> None:
    with Client(url, timeout_s=0.3) as client:
        running.pause()
        with pytest.raises(TimedOut, match="the message may be stored or not") as caught:
            client.publish("t", b"x")
        assert "client.publish(" in "".join(traceback.format_exception(caught.value))
        with pytest.raises(TimedOut):
            client.send("t", b"x").result(TIMEOUT_S)
        running.resume()


def test_a_message_that_cannot_be(url: str) -> None:
    with Client(url) as client:
        with pytest.raises(BadMessage, match="use the name of one topic"):
            client.publish("a/#", b"x")
        refused = client.send("a/#", b"x")
        assert isinstance(refused.exception(TIMEOUT_S), BadMessage)
        assert isinstance(client.send("t", b"x", key=7).exception(TIMEOUT_S), TypeError)  # type: ignore[arg-type]
        assert client._may_send._value == 10_000
        assert client.publish("t", b"x").queue_offset == 0


def test_closing_while_calls_wait(url: str, running: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_UNANSWERED_BYTES", 500)
    client = Client(url, timeout_s=1)
    client.connect()
    running.pause()
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(client.publish, "t", PAYLOAD) for _ in range(3)]
        wait_until(lambda: held(client) == 2)
        client.close()
        outcomes = [type(call.exception(TIMEOUT_S)) for call in waiting]
    assert outcomes.count(ClientClosed) >= 1
    assert set(outcomes) <= {ClientClosed, TimedOut}
    running.resume()
    with pytest.raises(ClientClosed):
        client.publish("t", b"x")


def test_closing_waits_for_answers(url: str, running: StoreProcess) -> None:
    client = Client(url)
    client.connect()
    running.pause()
    sent = [client.send("t", b"%d" % number) for number in range(10)]
    resume = threading.Timer(0.2, running.resume)
    resume.start()
    client.close()
    resume.join()
    assert [future.result(0).queue_offset for future in sent] == list(range(10))


def test_a_call_that_is_interrupted(url: str, running: StoreProcess) -> None:
    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with Client(url) as client:
        running.pause()
        with interrupting(interrupt, lambda: unanswered(client)), pytest.raises(KeyboardInterrupt):
            client.publish("t", b"interrupted")
        running.resume()
        assert client.publish("t", b"next").queue_offset == 1


def test_a_signal_handler_publishes_while_a_call_waits(url: str, running: StoreProcess) -> None:
    sent: list[concurrent.futures.Future[Any]] = []

    def handle(_: int, __: FrameType | None) -> None:
        sent.append(client.send("t", b"of the handler"))
        running.resume()
        assert client.publish("t", b"of the handler, too").queue_offset == 2

    with Client(url) as client:
        running.pause()
        with interrupting(handle, lambda: unanswered(client)):
            assert client.publish("t", b"waiting").queue_offset == 0
        assert sent[0].result(TIMEOUT_S).queue_offset == 1


def test_a_signal_handler_closes_while_a_call_waits(url: str, running: StoreProcess) -> None:
    def handle(_: int, __: FrameType | None) -> None:
        running.resume()
        client.close()

    client = Client(url)
    client.connect()
    running.pause()
    with interrupting(handle, lambda: unanswered(client)):
        assert client.publish("t", b"waiting").queue_offset == 0
    with pytest.raises(ClientClosed):
        client.publish("t", b"x")
