"""`penstock pub` and `penstock sub` against our own server."""

import subprocess
import threading

import pytest

from tests.conftest import ONE_PROCESS_BY_DAY, ServerFactory, SharedServers
from tests.interop.programs import TIMEOUT_S, mark_ready, penstock, penstock_sub, run
from tests.support.server_process import PenstockServer

pytestmark = ONE_PROCESS_BY_DAY


@pytest.fixture
def server(shared_server: SharedServers) -> PenstockServer:
    server = shared_server()
    mark_ready(server.port)
    return server


def url(server: PenstockServer) -> str:
    return f"mqtt://127.0.0.1:{server.port}"


def pub(server: PenstockServer, topic: str, *arguments: str, stdin: bytes = b"") -> bytes:
    return run(*penstock("pub", topic, *arguments, "--url", url(server)), stdin=stdin)


def sub(server: PenstockServer, *arguments: str, code: int = 0) -> bytes:
    return run(*penstock("sub", *arguments, "--url", url(server)), code=code)


def test_count_verbose_retain_and_null(server: PenstockServer) -> None:
    pub(server, "kept/ä", "-m", "one ü", "-r", "-q", "1")
    pub(server, "kept/b", "-m", "two", "-r", "-q", "2")
    assert sub(server, "kept/+", "-C", "2") == "two\none ü\n".encode()
    assert sub(server, "kept/ä", "-v", "-C", "1") == "kept/ä one ü\n".encode()
    pub(server, "kept/ä", "-n", "-r", "-q", "1")
    assert sub(server, "kept/+", "-v", "-C", "1") == b"kept/b two\n"


def test_a_server_that_is_not_there_yet_is_waited_for(penstock_server: ServerFactory) -> None:
    server = penstock_server()
    server.kill()
    waiting = threading.Timer(0.5, server.restart)
    waiting.start()
    pub(server, "late", "-m", "one", "-r", "-q", "1", "--wait", "30")
    waiting.join()
    assert sub(server, "late", "-C", "1") == b"one\n"


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_lines(server: PenstockServer, qos: str) -> None:
    lines = [b"line %d" % i for i in range(3_000)]
    subscriber = penstock_sub(server.port, "lines", int(qos))
    pub(server, "lines", "-l", "-q", qos, stdin=b"\n".join(lines) + b"\n")
    assert subscriber.messages(len(lines)) == [("lines", line) for line in lines]


def with_history(server: PenstockServer) -> PenstockServer:
    pub(server, "line/7", "-l", "-q", "1", stdin=b"".join(b"%d\n" % i for i in range(10)))
    return server


@pytest.fixture(scope="module")
def history(shared_server: SharedServers) -> PenstockServer:
    return with_history(shared_server())


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), ("-1h", 0), ("-1d", 0), ("4", 4), ("9", 9), ("2020-01-01T00:00:00Z", 0)]
)
@pytest.mark.parametrize("topic_filter", ["line/7", "line/#"])
def test_replay(history: PenstockServer, start: str, first: int, topic_filter: str) -> None:
    expected = b"".join(b"%d\n" % i for i in range(first, 10))
    assert sub(history, topic_filter, "--from", start, "-C", str(10 - first)) == expected


def test_replay_goes_on_with_what_is_new(penstock_server: ServerFactory) -> None:
    history = with_history(penstock_server())
    command = penstock("sub", "line/+", "line/7", "--from", "8", "-C", "3", "--url", url(history))
    refused = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert refused.returncode == 1
    assert b"refused the subscription to 'line/+'" in refused.stderr
    process = subprocess.Popen(
        penstock("sub", "line/7", "--from", "8", "-C", "3", "--url", url(history)), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == [b"8\n", b"9\n"]
    pub(history, "line/7", "-m", "new", "-q", "1")
    assert process.communicate(timeout=TIMEOUT_S)[0] == b"new\n"
    assert process.returncode == 0


def test_replay_survives_a_kill(penstock_server: ServerFactory) -> None:
    history = with_history(penstock_server())
    history.restart()
    assert sub(history, "line/7", "--from", "earliest", "-C", "10") == b"".join(b"%d\n" % i for i in range(10))


def test_a_replay_from_nonsense_is_one_line(history: PenstockServer) -> None:
    command = penstock("sub", "line/7", "--from", "yesterday", "--url", url(history))
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert b"refused the subscription to 'line/7'" in done.stderr


def test_a_topic_of_the_servers_own_is_refused(server: PenstockServer) -> None:
    for qos in ("1", "2"):
        command = penstock("pub", "$SYS/x", "-m", "1", "-q", qos, "--url", url(server))
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done
        assert b"refused 1 of 1 messages" in done.stderr


def test_a_payload_too_large_for_the_server_is_one_line(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.maximum_packet_size_bytes": 2_048})
    command = penstock("pub", "t", "-f", "-", "-q", "1", "--url", url(server))
    done = subprocess.run(command, input=bytes(3_000), capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done
