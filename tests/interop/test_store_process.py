"""A real `penstock store` and peers that speak the wire protocol to it."""

from __future__ import annotations

import itertools
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from store.errors import HandshakeRefused
from store.records._records import RecordBatch, records_from
from store.records.records import Record, RecordType
from store.state.changes import Change, Progress, SessionClosed, SessionOpened, WillState, encode_change
from store.wire.frames import encode
from store.wire.handshake import MAGIC
from store.wire.messages import (
    Append,
    Appended,
    Check,
    Claim,
    Claimed,
    Failed,
    FailureCode,
    Floors,
    Follow,
    Following,
    Goodbye,
    Grew,
    Hello,
    Locate,
    Located,
    Ping,
    Ranges,
    Read,
    ReadAt,
    RecordsAt,
    Release,
    Retained,
    RetainedFound,
    Role,
    Safe,
    TakenOver,
    Unfollow,
    WireMessage,
)
from tests.support.mqtt_packet_client import write_secret
from tests.support.server_process import ROOT, free_port
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import PeerClosed, WirePeer, connect
from tests.support.stores import batch_of

StartStore = Callable[..., StoreProcess]
HOSTILE_FRAMES = 60_000
FRAMES_PER_CONNECTION = 40


@pytest.fixture
def start_store(tmp_path: Path) -> Iterator[StartStore]:
    started: list[StoreProcess] = []

    def start(listen: str = "", **settings: Any) -> StoreProcess:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        named = {name.replace("__", "."): value for name, value in settings.items()}
        started.append(StoreProcess(folder, listen, named))
        return started[-1]

    yield start
    for store in started:
        store.close()


@pytest.fixture
def store(start_store: StartStore) -> StoreProcess:
    return start_store()


def follow(peer: WirePeer, topic_filter: str, history: bool = True) -> int:
    answer = peer.call(Follow(topic_filter, history, -1, False))
    assert isinstance(answer, Following)
    return answer.queues[0].ref


def read(peer: WirePeer, ref: int, start: int, count: int = 10_000) -> list[Record]:
    frame = peer.answer_frame(peer.ask(Read([(ref, start)], count, 1 << 20)))
    assert isinstance(frame.message, Ranges)
    records = records_from(frame.records, 0)
    return [Record._make(records[i]) for i in range(len(records))]


def told(*changes: Change) -> bytes:
    batch = RecordBatch()
    for change in changes:
        batch.append(*encode_change(change))
    return bytes(batch)


def message(payload: bytes, topic: bytes = b"t/1", flags: int = 0) -> bytes:
    return bytes(batch_of(payload, topic=topic, flags=flags))


# --- every request


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_every_request(start_store: StartStore, tmp_path: Path, scheme: str) -> None:
    store = start_store(f"unix://{tmp_path}/s" if scheme == "unix" else "")
    peer = store.connect("gw-1")
    assert not peer.welcome.resumed
    ref = follow(peer, "t/#")
    answer = peer.call(Append(1), message(b"1") + message(b"2", flags=4))
    assert isinstance(answer, Appended)
    peer.grew(ref, 2)
    peer.event(Safe, lambda each: each.log_offset >= answer.end)
    records = read(peer, ref, 0)
    assert [record.payload for record in records] == [b"1", b"2"]
    frame = peer.answer_frame(peer.ask(ReadAt([records[1].log_offset, 8])))
    assert frame.message == RecordsAt([True, False])
    assert records_from(frame.records, 0)[0] == tuple(records[1])
    assert peer.call(Retained("t/+", "", 10)) == RetainedFound(
        [(records[1].log_offset, records[1].qos, records[1].client_id)], None
    )
    assert peer.call(Locate("t/#", "earliest")) == Located(0)
    peer.tell(Floors([(ref, 1)]))
    peer.tell(Unfollow([ref]))
    assert peer.call(Claim("c", False)) == Claimed(b"", answer.end)
    peer.tell(Release("c"))
    failed = peer.call(Append(2), message(b"3", topic=b"+"))
    assert isinstance(failed, Failed)
    assert failed.code == FailureCode.BAD_REQUEST
    peer.tell(Goodbye("done"))
    with pytest.raises(PeerClosed):
        peer.listen(5)


@pytest.mark.catalogue("E17")
def test_a_follower_is_told_of_what_comes_right_after(store: StoreProcess) -> None:
    """1,000 of 1,000: what is appended once Following is there gets an event, and can be read."""
    publisher, reader = store.connect("gw-1"), store.connect("gw-2")
    for i in range(1_000):
        topic_filter = (f"t/{i}", f"+/{i}", f"l{i}/#")[i % 3]
        topic = f"l{i}/x" if topic_filter.endswith("#") else f"t/{i}"
        ref = follow(reader, topic_filter, history=bool(i % 2))
        assert isinstance(publisher.call(Append(i + 1), message(b"%d" % i, topic.encode())), Appended)
        reader.grew(ref, 1)
        assert [record.payload for record in read(reader, ref, 0)] == [b"%d" % i]


def test_a_session_moves_to_who_claims_it(store: StoreProcess) -> None:
    one, two = store.connect("gw-1"), store.connect("gw-2")
    one.call(Claim("c", False))
    one.call(Append(1), told(SessionOpened("c", False, 3600)))
    asked = two.ask(Claim("c", False))
    one.event(TakenOver)
    one.call(Append(2), told(SessionClosed("c", 3600, False, 5)))
    claimed = two.answer(asked)
    assert isinstance(claimed, Claimed)
    assert msgspec.msgpack.decode(claimed.session)["frontier"] == 5
    assert isinstance(one.call(Append(3), told(SessionClosed("c", 0, False))), Appended)  # it is two's: nothing is said
    fenced = one.call(Append(4), told(Progress("c", acked=5)))
    assert isinstance(fenced, Failed)
    assert fenced.code == FailureCode.FENCED


def test_a_sync_store_answers_once_it_is_on_disk(start_store: StartStore) -> None:
    peer = start_store(store__flush="sync").connect("gw")
    asked = [peer.ask(Append(sequence), message(b"x")) for sequence in range(1, 101)]
    answers = [peer.answer(request_id) for request_id in asked]
    assert all(isinstance(answer, Appended) for answer in answers)
    assert peer.call(Append(100), message(b"x")) == Appended(0, 0)


# --- who is let in, and where


def test_port_0_and_the_end(start_store: StartStore) -> None:
    store = start_store("tcp://127.0.0.1:0", wire__lease_ms=60_000)
    store.url = store.said("ready ")
    assert not store.url.endswith(":0")
    peer = store.connect("gw")
    asked = peer.ask(Append(1), message(b"1"))
    store.process.send_signal(signal.SIGTERM)
    peer.event(Goodbye)
    answers = peer._answers.get(asked)
    assert store.process.wait(10) == 0
    store.start()
    store.url = store.said("ready ")
    again = store.connect("gw")
    assert again.welcome.resumed
    assert again.welcome.appended == (1 if answers is not None else 0)


def test_a_unix_socket_goes_with_its_store_and_is_nobody_elses(start_store: StartStore, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    store = start_store(f"unix://{path}")
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(RuntimeError, match="cannot listen there"):
        start_store(f"unix://{path}")
    store.kill()
    store.start()
    store.connect("gw").call(Claim("c", False))
    store.terminate()
    assert not path.exists()


def test_tokens(start_store: StartStore, tmp_path: Path) -> None:
    file = write_secret(tmp_path / "token", "s3cret\n")
    for settings in ({"wire__token": "s3cret"}, {"wire__token_file": file}):
        store = start_store(**settings)
        for role in (Role.GATEWAY, Role.CLIENT):
            assert store.connect(f"a {role}", role, "s3cret").call(Locate("t", "earliest")) == Located(0)
            with pytest.raises(HandshakeRefused, match=f"not the token of a {role}"):
                store.connect("b", role, "S3cret")
        assert "s3cret" not in store.log_text()
        assert "not let in (token): not the token of a client" in store.log_text()


@pytest.mark.parametrize(
    ("listen", "settings", "says"),
    [
        ("tcp://0.0.0.0:0", {}, "reachable by other machines without a token and without TLS"),
        ("tcp://0.0.0.0:0", {"wire__token": "x"}, "reachable by other machines without TLS"),
        ("tls://127.0.0.1:0", {}, "a tls:// address needs wire.tls_certificate and wire.tls_key"),
        ("tcp://192.0.2.1:7", {"wire__allow_open_beyond_loopback": "true"}, "cannot listen there"),
        ("unix:///nonexistent/socket", {}, "cannot listen there"),
        ("tcp://127.0.0.1:0", {"wire__token_file": "/nonexistent"}, "No such file or directory; name a readable"),
        ("tcp://127.0.0.1:0", {"wire__token": "x", "wire__token_file": "/dev/null"}, "are both set"),
        ("tcp://127.0.0.1:0", {"wire__token_file": "/dev/null"}, "empty, so everybody would be let in"),
        ("mqtt://127.0.0.1:0", {}, "is not tcp://HOST:PORT"),
    ],
)
def test_store_does_not_start_with_invalid_settings(
    start_store: StartStore, listen: str, settings: dict[str, str], says: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        start_store(listen, **settings)
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("penstock: ")]
    assert says in line


def test_tls(start_store: StartStore, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    port = free_port()
    files = {"wire__tls_certificate": certificate, "wire__tls_key": key}
    store = start_store(f"tls://127.0.0.1:{port}", **files)
    context = ssl.create_default_context(cafile=certificate)
    plain = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(plain, server_hostname="localhost") as secure:
        secure.sendall(MAGIC + encode(Hello([1], "gateway", "gw")))
        secure.sendall(encode(Locate("t", "earliest"), 7))
        found = b""
        while encode(Located(0), 7) not in found:
            found += secure.recv(65_536)
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(MAGIC + encode(Hello([1], "gateway", "gw")))
        plain.settimeout(10)
        assert MAGIC not in plain.recv(65_536)
    certificate.chmod(0o600)  # as a key has to have
    with pytest.raises(RuntimeError, match="not a certificate with its key"):
        start_store(f"tls://127.0.0.1:{free_port()}", **(files | {"wire__tls_key": certificate}))
    assert store.process.poll() is None


def test_peers_without_a_hello_are_disconnected(start_store: StartStore) -> None:
    store = start_store(wire__handshake_timeout_s=1, wire__max_connections=3)
    silent = [connect(store.url) for _ in range(3)]
    with connect(store.url) as fourth:
        assert b"busy" in fourth.recv(1_000)
    for each in silent:
        assert each.recv(1) == b""
        each.close()
    store.connect("gw").call(Claim("c", False))
    assert store.log_text().count("it has not said who it is in time") == 3


def test_metrics(tmp_path: Path, start_store: StartStore) -> None:
    store = start_store(admin="127.0.0.1:0")
    url = store.said("admin ")
    peer = store.connect("gw")
    peer.call(Append(1), message(b"1"))
    with connect(store.url) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"an HTTP client" in stranger.recv(1_000)
    page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    for line in (
        "penstock_wire_peers 1.0",
        "penstock_wire_appends_total 1.0",
        "penstock_wire_connections_opened_total 2.0",
        'penstock_wire_bad_input_total{reason="refused"} 1.0',
        "penstock_wire_leases_ended_total 0.0",
        "penstock_stored_messages_total 1.0",
    ):
        assert line in page
    assert urllib.request.urlopen(f"{url}/readyz").read() == b"ready\n"


# --- hostile, slow and stopped peers


def mutated(rng: random.Random, data: bytes) -> bytes:
    result = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(result))
        match rng.randrange(4):
            case 0:
                result[at] ^= 1 << rng.randrange(8)
            case 1:
                del result[at:]
            case 2:
                result[at:at] = rng.randbytes(rng.randrange(1, 20))
            case 3:
                result[at] = rng.choice((0, 1, 0x7F, 0x80, 0x90, 0xC1, 0xFF))
        if not result:
            return b"\0"
    return bytes(result)


def hostile_frames(rng: random.Random, number: int) -> bytes:
    requests: list[tuple[WireMessage, bytes]] = [
        (
            Append(rng.choice((number, 1, 2**63 - 1))),
            message(rng.randbytes(20), b"h/%d" % (number % 5), rng.randrange(64)),
        ),
        (Append(number), told(SessionOpened("h", bool(rng.randrange(2)), 5, WillState("h/w", b"", 0, False, b"", 0)))),
        (Follow(rng.choice(("h/#", "h/+", "#", "+/+/+")), True, rng.randrange(-1, 1 << 40), True), b""),
        (Read([(rng.randrange(4), rng.randrange(1 << 40)), (1, 0)], rng.choice((1, 2**63 - 1)), 2**63 - 1), b""),
        (ReadAt([rng.randrange(1 << 20) * 8, 2**63 - 1, 64]), b""),
        (Retained("#", rng.choice(("", "h", "\uffff")), 2**63 - 1), b""),
        (Locate("h/#", rng.choice(("earliest", "-1h", "@9", "9" * 19, "x"))), b""),
        (Claim("h", bool(rng.randrange(2))), b""),
        (Check([rng.randrange(4), 1, 1, 2**32 - 1]), b""),
    ]
    asked, records = rng.choice(requests)
    told_too = rng.choice(
        (Ping(), Unfollow([1, 1, 9]), Floors([(1, 2**63 - 1)]), Release("h"), Hello([1], "gateway", "x"))
    )
    return encode(asked, rng.choice((number, 1)), records) + (encode(told_too) if rng.random() < 0.3 else b"")


def test_a_hostile_peer_disturbs_nobody(store: StoreProcess) -> None:
    rng = random.Random(7)
    worker = store.connect("worker")
    ref = follow(worker, "w/#")
    slowest_s = 0.0
    for number in range(1, HOSTILE_FRAMES // FRAMES_PER_CONNECTION + 1):
        with connect(store.url) as hostile:
            hostile.settimeout(0.2)
            greeting = MAGIC + encode(Hello([1], rng.choice(("gateway", "client")), f"h{number % 50}"))
            frames = [hostile_frames(rng, each) for each in range(1, FRAMES_PER_CONNECTION)]
            broken = [mutated(rng, frame) if rng.random() < 0.1 else frame for frame in frames]
            data = b"".join([mutated(rng, greeting) if rng.random() < 0.1 else greeting, *broken])
            try:
                hostile.sendall(rng.randbytes(100) if rng.random() < 0.05 else data)
                hostile.recv(1 << 16)
            except OSError:
                pass
        started_s = time.monotonic()
        assert isinstance(worker.call(Append(number), message(b"%d" % number, b"w/1")), Appended)
        worker.grew(ref, number)
        slowest_s = max(slowest_s, time.monotonic() - started_s)
    assert [record.payload for record in read(worker, ref, 0, 3)] == [b"1", b"2", b"3"]
    assert slowest_s < 1
    assert "Traceback" not in store.log_text()
    worker.close()
    store.restart()  # nothing got into the log that cannot be applied again
    assert store.connect("worker").welcome.resumed
    store.terminate()


def test_peer_that_reads_nothing_delays_nobody(store: StoreProcess) -> None:
    worker, deaf = store.connect("worker"), store.connect("deaf")
    ref = follow(deaf, "t/#")
    for sequence in range(1, 9):
        worker.call(Append(sequence), message(bytes(500_000)))
    deaf.socket.setblocking(False)
    request = encode(Read([(ref, 0), (ref, 2)], 2, 1 << 20), 1)
    asked = 0
    try:
        while asked < 100_000:  # 100 GB of answers
            asked += 1
            deaf.socket.send(request[:8] + asked.to_bytes(4, "little") + request[12:])
    except BlockingIOError:
        pass
    assert asked > 1_000
    times = []
    for sequence in range(9, 200):
        started_s = time.monotonic()
        worker.call(Append(sequence), message(b"x"))
        times.append(time.monotonic() - started_s)
    assert sorted(times)[len(times) // 2] < 0.05
    assert resident_bytes(store.process.pid) < 400 << 20


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_too_much_at_a_time_ends_a_connection(start_store: StartStore) -> None:
    store = start_store(wire__credit_bytes=256 << 10, wire__max_frame_bytes=256 << 10)
    holder, greedy, other = store.connect("holder"), store.connect("greedy"), store.connect("other")
    claims = [Claim(f"{number:01000}", False) for number in range(300)]
    for claim in claims:
        holder.call(claim)

    with pytest.raises(PeerClosed):
        all(greedy.ask(claim) for claim in itertools.cycle(claims))  # for ever
    other.call(Claim("d", False))
    assert "with a credit of" in store.log_text()


HOLDER = """
import sys
from tests.support.store_protocol_client import *
from tests.interop.test_store_process import *
peer = WirePeer(sys.argv[1], "stopped")
peer.call(Claim("c", False))
peer.call(Append(1), told(SessionOpened("c", False, 3600, WillState("gone/c", b"gone", 1, False, b"", 0))))
print("ready", flush=True)
peer.wait(lambda: False, 60)
"""


def test_a_peer_that_is_stopped_is_gone_and_its_wills_are_sent_once(store: StoreProcess) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, store.url], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        watcher = store.connect("watcher")
        ref = follow(watcher, "gone/#")
        watcher.listen(3)  # longer than a lease: it answers
        assert read(watcher, ref, 0) == []
        process.send_signal(signal.SIGSTOP)
        watcher.grew(ref, 1)
        assert [record.payload for record in read(watcher, ref, 0)] == [b"gone"]
        claimed = watcher.call(Claim("c", False))
        assert isinstance(claimed, Claimed)
        assert msgspec.msgpack.decode(claimed.session)["connected"] is False
        process.send_signal(signal.SIGCONT)
        assert process.wait(20) == 1, "its connection is gone"
        watcher.listen(0.5)
        assert len(read(watcher, ref, 0)) == 1
        assert not store.connect("stopped").welcome.resumed
    finally:
        process.kill()
        process.communicate()


def test_a_store_that_is_stopped_blames_nobody(store: StoreProcess) -> None:
    one, two = store.connect("gw-1"), store.connect("gw-2")
    one.call(Claim("c", False))
    one.call(Append(1), told(SessionOpened("c", False, 3600)))
    store.pause()
    time.sleep(5)
    store.resume()
    one.listen(1)
    two.listen(0.1)
    asked = two.ask(Claim("c", False))
    one.event(TakenOver)
    one.call(Append(2), told(SessionClosed("c", 3600, False)))
    assert isinstance(two.answer(asked), Claimed)
    assert "not heard of" not in store.log_text()


@pytest.mark.catalogue("F19")
def test_a_burst_of_events_is_merged(store: StoreProcess) -> None:
    publisher, reader = store.connect("gw-1"), store.connect("gw-2")
    ref = follow(reader, "t/#")
    asked = [publisher.ask(Append(sequence), message(b"x")) for sequence in range(1, 2_001)]
    for request_id in asked:
        publisher.answer(request_id)
    reader.wait(lambda: any(isinstance(each, Grew) and each.queues[-1] == (ref, 2_000) for each in reader.events))
    assert len([each for each in reader.events if isinstance(each, Grew)]) < 1_000


def test_state_changes_are_of_known_types(store: StoreProcess) -> None:
    client = store.connect("sdk", Role.CLIENT)
    refused = client.call(Append(1), told(SessionOpened("c", False, 60)))
    assert isinstance(refused, Failed)
    batch = RecordBatch()
    batch.append(RecordType.PEER_GONE, b"\x91\xa1x")
    refused = store.connect("gw").call(Append(1), bytes(batch))
    assert isinstance(refused, Failed)
