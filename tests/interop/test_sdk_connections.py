"""The native client's connection to a real `penstock store`: cut, silent, refused, by TLS and by Unix sockets."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from loadtest.chaos.wire import Wire
from penstock import Client
from penstock.sdk.errors import (
    CannotConnect,
    ClientClosed,
    TimedOut,
)
from tests.interop.conftest import StartStore
from tests.interop.programs import run
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

pytestmark = pytest.mark.asyncio


async def test_a_connection_that_is_cut_is_made_again(running: StoreProcess) -> None:
    port = urlsplit(running.url).port
    assert port is not None
    wire = Wire(port)
    try:
        async with Client(f"penstock://127.0.0.1:{wire.port}") as client:
            found: list[bytes] = []
            seen = asyncio.Event()

            async def follow() -> None:
                async for message in client.read("cut", stop=None):
                    found.append(message.payload)
                    seen.set()

            reader = asyncio.create_task(follow())
            for number in range(5):
                sent = [client.send("cut", b"%d-%d" % (number, each)) for each in range(100)]
                wire.cut()
                more = [client.send("cut", b"%d-%d" % (number, each)) for each in range(100, 200)]
                wire.mend()
                receipts = await asyncio.gather(*sent, *more)
                assert [receipt.queue_offset for receipt in receipts] == list(range(number * 200, number * 200 + 200))
            while len(found) < 1_000:
                seen.clear()
                await seen.wait()
            reader.cancel()
            assert found == [b"%d-%d" % (number, each) for number in range(5) for each in range(200)]
            wire.cut()
            client_timeout = Client(f"penstock://127.0.0.1:{wire.port}", timeout_s=0.5)
            with pytest.raises(CannotConnect):
                await client_timeout.connect()
            wire.mend()
    finally:
        wire.close()


async def test_a_program_that_stands_still_for_longer_than_its_lease(start_client_store: StartStore) -> None:
    store = start_client_store(wire__heartbeat_ms=20, wire__lease_ms=100)
    process = psutil.Process(store.process.pid)
    async with Client(store.url.replace("tcp://", "penstock://")) as client:
        for number in range(3):
            sent = [client.send("t", b"x") for _ in range(100)]
            await asyncio.sleep(0)  # they are on their way
            while any(each.status == "ESTABLISHED" for each in process.net_connections()):
                time.sleep(0.05)  # noqa: ASYNC251 - it is what this is about
            receipts = await asyncio.gather(*sent)
            assert [receipt.queue_offset for receipt in receipts] == list(range(number * 100, number * 100 + 100))
        assert len([message async for message in client.read("t")]) == 300


async def test_a_store_that_does_not_answer(url: str, running: StoreProcess) -> None:
    async with Client(url, timeout_s=0.5) as client:
        running.pause()
        with pytest.raises(TimedOut, match=r"publish: no answer from the store within 0.5 s .*may be stored or not"):
            await client.publish("t", b"x")
        running.resume()


async def test_refused_client_is_told_why(start_client_store: StartStore) -> None:
    store = start_client_store(wire__token="s3cret")
    url = store.url.replace("tcp://", "penstock://")
    with pytest.raises(CannotConnect, match=r"refused the connection \(token\)"):
        await Client(url).connect()
    async with Client(url, token="s3cret") as client:
        await client.publish("t", b"x")
    with pytest.raises(CannotConnect, match=r"cannot connect .*; is it running, and is the address right\?"):
        await Client(f"penstock://127.0.0.1:{free_port()}", timeout_s=0.3).connect()
    with pytest.raises(ClientClosed, match="use it inside `async with Client"):
        await client.publish("t", b"x")


async def test_tls_and_unix_sockets(start_client_store: StartStore, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    await asyncio.to_thread(run, *command.split(), "-keyout", str(key), "-out", str(certificate))
    store = start_client_store(
        f"tls://127.0.0.1:{free_port()}", wire__tls_certificate=certificate, wire__tls_key=key, wire__token="s"
    )
    url = store.url.replace("tls://", "penstocks://")
    async with Client(url, tls=ssl.create_default_context(cafile=certificate), token="s") as client:
        assert (await client.publish("t", b"x")).queue_offset == 0
    with pytest.raises(CannotConnect, match=r"its certificate is not trusted .*; give tls="):
        await Client(url, token="s", timeout_s=1).connect()
    store = start_client_store(f"unix://{tmp_path}/socket")
    async with Client(store.url) as client:
        receipt = await client.publish("t", b"x")
        assert (await client.get(receipt.message_id)).payload == b"x"
