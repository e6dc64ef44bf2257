"""A real server whose log was damaged while it was dead: stock clients get all the rest, and an operator is told."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lightqueue.mending.inspect import copy_of
from store.files.segment import HEADER_BYTES, segment_paths
from store.records._records import verify
from store.records.records import RecordType, read_records
from store.recovery.quarantine import Quarantine
from tests.conftest import ServerFactory
from tests.support.injuries import zero
from tests.support.server_process import PenstockServer
from tests.support.stores import flip, wait_until

NUMBER = 800
TOPIC = "plant/7/temp"


class Subscriber:
    """A client with a durable session; what it got, and whether it is subscribed."""

    def __init__(self, server: PenstockServer) -> None:
        self.got: list[bytes] = []
        self.subscribed = False
        self.was_there: list[bool] = []  # "session present", as each CONNACK said it
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "archive", clean_session=False)
        self._client.on_message = lambda _client, _data, message: self.got.append(bytes(message.payload))
        self._client.on_subscribe = self._is_subscribed
        self._client.on_connect = lambda _client, _data, flags, *_: self.was_there.append(flags.session_present)
        self._client.connect("127.0.0.1", server.port)
        self._client.subscribe("plant/#", 1)
        self._client.loop_start()
        wait_until(lambda: self.subscribed)

    def _is_subscribed(self, *_: object) -> None:
        self.subscribed = True

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def publish(server: PenstockServer) -> list[bytes]:
    """Publish with a stock client; all is acknowledged once it returns."""
    payloads = [b"%06d %s" % (number, b"x" * 1000) for number in range(NUMBER)]
    run = ["mosquitto_pub", "-p", str(server.port), "-t", TOPIC, "-q", "1", "-l"]
    subprocess.run(run, input=b"\n".join(payloads) + b"\n", check=True, timeout=60)
    return payloads


def messages_of(segment: Path) -> list[tuple[int, bytes]]:
    """(position in the file, payload) of the messages in a segment."""
    data = memoryview(segment.read_bytes())[HEADER_BYTES:]
    first = int(segment.stem) + HEADER_BYTES
    found = list(read_records(data[: verify(data, first)[0]]))
    return [
        (record.log_offset - int(segment.stem), record.payload)
        for record in found
        if record.type == RecordType.MESSAGE and record.topic == TOPIC.encode()
    ]


def inspect(data: Path) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "penstock", "store", "inspect", str(data)]
    return subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("which", [0, -1])
def test_flipped_bit_costs_one_message(penstock_server: ServerFactory, small: dict[str, object], which: int) -> None:
    server = penstock_server(flush="sync", settings=small, admin="127.0.0.1:0")
    Subscriber(server).close()
    payloads = publish(server)
    server.kill()
    segment = [path for path in segment_paths(server.data / "log") if len(messages_of(path)) > 3][which]
    position, damaged = messages_of(segment)[2]
    flip(segment, position + 60)
    shown = inspect(server.data)
    assert shown.returncode == 1
    assert "checksum mismatch" in shown.stdout
    server.restart()
    subscriber = Subscriber(server)
    expected = [payload for payload in payloads if payload != damaged]
    wait_until(lambda: len(subscriber.got) >= len(expected))
    assert subscriber.got == expected
    subscriber.close()
    url = re.findall(r"^admin (http://\S+)$", server.log_text(), re.MULTILINE)[-1]
    with urllib.request.urlopen(url + "/healthz", timeout=20) as answer:
        assert re.fullmatch(r"ok; the log lost \d+ bytes damaged: see .*quarantine\n", answer.read().decode())
    with urllib.request.urlopen(url + "/metrics", timeout=20) as answer:
        assert re.search(r'^penstock_log_lost_bytes{kind="damaged"} [1-9]', answer.read().decode(), re.MULTILINE)
    server.kill()
    assert inspect(server.data).returncode == 0
    assert len(list((server.data / "quarantine").glob("*.json"))) == 1


def test_a_segment_that_was_deleted(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    server = penstock_server(flush="sync", settings=small)
    Subscriber(server).close()
    payloads = publish(server)
    server.kill()
    segment = [path for path in segment_paths(server.data / "log") if len(messages_of(path)) > 3][-2]
    gone = {payload for _, payload in messages_of(segment)}
    segment.unlink()
    server.restart()
    subscriber = Subscriber(server)
    expected = [payload for payload in payloads if payload not in gone]
    wait_until(lambda: len(subscriber.got) >= len(expected))
    assert subscriber.got == expected
    subscriber.close()
    assert "no longer there" in server.log_text()


AROUND: dict[str, Callable[[Path, int], object]] = {  # of the newest segment, and a position in its file
    "a zeroed sector": lambda segment, position: zero(segment, (position & ~511) - 512, 1024),
    "cut short": lambda segment, position: os.truncate(segment, position - 1500),
    "deleted": lambda segment, _: segment.unlink(),
}


@pytest.mark.parametrize("injury", AROUND.values(), ids=AROUND)
def test_damage_around_the_place_where_the_index_was_at_a_kill(
    penstock_server: ServerFactory, small: dict[str, object], injury: Callable[[Path, int], object]
) -> None:
    server = penstock_server(flush="sync", settings=small)
    Subscriber(server).close()
    publish(server)
    server.terminate()
    server.restart()
    publish(server)
    server.kill()
    with copy_of(server.data / "index") as index:
        assert index is not None
        at = index.applied_offset
    ledger = {
        int(path.stem) + position: payload
        for path in segment_paths(server.data / "log")
        for position, payload in messages_of(path)
    }
    (segment,) = [path for path in segment_paths(server.data / "log") if int(path.stem) < at][-1:]
    for path in segment_paths(server.data / "log"):
        if int(path.stem) > at:
            path.unlink()
    injury(segment, at - int(segment.stem))
    command = [sys.executable, "-m", "penstock", "store", "check", str(server.data)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (shown.returncode, "a start serves all that is intact" in shown.stdout) == (1, True)
    server.restart()
    losses = [each for each in Quarantine(server.data / "quarantine").findings() if each.is_loss]
    assert any(loss.start <= at <= loss.end for loss in losses)
    intact = [each for place, each in ledger.items() if not any(loss.start <= place < loss.end for loss in losses)]
    assert NUMBER // 2 < len(intact) < 2 * NUMBER
    subscriber = Subscriber(server)
    wait_until(lambda: len(subscriber.got) >= len(intact))
    assert subscriber.got == intact
    assert subscriber.was_there == [False]
    subscriber.close()


def test_refusing_names_the_damage(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    server = penstock_server(flush="sync", settings=small)
    publish(server)
    server.kill()
    segment = segment_paths(server.data / "log")[0]
    flip(segment, messages_of(segment)[2][0] + 60)
    run = [sys.executable, "-m", "penstock", "serve", "--data", str(server.data), "--listen", "mqtt://127.0.0.1:0"]
    environment = {"PENSTOCK_STORE__ON_DAMAGE": "refuse", "PATH": ""}
    ended = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "checksum mismatch" in ended.stderr + ended.stdout
    assert "on_damage" in ended.stderr + ended.stdout


def test_an_index_without_its_manifest_is_built_again(penstock_server: ServerFactory, small: dict[str, object]) -> None:
    server = penstock_server(flush="sync", settings=small)
    Subscriber(server).close()
    payloads = publish(server)
    server.terminate()
    for path in (server.data / "index").glob("MANIFEST-*"):
        path.unlink()
    server.restart()
    subscriber = Subscriber(server)
    wait_until(lambda: len(subscriber.got) >= len(payloads))
    assert subscriber.got == payloads
    subscriber.close()


def test_a_session_that_lost_a_record_is_told_to_subscribe_again(
    penstock_server: ServerFactory, small: dict[str, object]
) -> None:
    """Its SUBSCRIBED is damaged, and the index that had it is gone: else it would wait for messages in vain."""
    server = penstock_server(flush="sync", settings=small)
    Subscriber(server).close()
    payloads = publish(server)
    server.kill()
    shutil.rmtree(server.data / "index")
    segment = segment_paths(server.data / "log")[0]
    data = memoryview(segment.read_bytes())[HEADER_BYTES:]
    found = read_records(data[: verify(data, HEADER_BYTES)[0]])
    flip(segment, next(record.log_offset for record in found if record.type == RecordType.SUBSCRIBED) + 44)
    server.restart()
    assert "1 sessions may have lost records of theirs" in server.log_text()
    subscriber = Subscriber(server)
    assert subscriber.was_there == [False]
    assert publish(server) == payloads
    wait_until(lambda: subscriber.got == payloads)
    subscriber.close()
    again = Subscriber(server)
    assert again.was_there == [True]
    again.close()
