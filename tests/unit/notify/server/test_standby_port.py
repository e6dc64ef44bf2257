"""A store that does not lead says who does, to peers with a token."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from loadtest.ports import free_port
from notify.links.address import StoreAddress
from notify.server.standby_port import StandbyPort
from notify.settings import WireSettings
from store.errors import HandshakeRefused, StoreAway
from store.wire.client.blocking_link import BlockingTimes, TlsContext, connect
from store.wire.messages import Hello, Role
from tests.support.certificates import authority, vouched_for

TIMES = BlockingTimes(5.0, 5.0)


def refusal(address: StoreAddress, token: str, tls: TlsContext | None = None) -> HandshakeRefused:
    with pytest.raises(HandshakeRefused) as refused:
        connect(address, tls, TIMES, Hello([1], Role.CLIENT, "c", token))
    return refused.value


def test_standby_tells_the_leader_to_peers_with_a_token() -> None:
    async def run() -> None:
        leader = f"127.0.0.1:{free_port()}"
        port = StandbyPort(WireSettings(handshake_timeout_s=1), {"client": "right"}, lambda: leader)
        address = StoreAddress.parse(f"tcp://127.0.0.1:{free_port()}")
        await port.listen(address, None)
        wrong = await asyncio.to_thread(refusal, address, "wrong")
        assert (wrong.reason, wrong.leader) == ("token", "")
        with pytest.raises(OSError, match="refused"):  # it goes on at the store that is said to lead
            await asyncio.to_thread(connect, address, None, TIMES, Hello([1], Role.CLIENT, "c", "right"))
        leader = ""
        unknown = await asyncio.to_thread(refusal, address, "right")
        assert (unknown.reason, unknown.leader) == ("not_leader", "")
        silent, writer = await asyncio.open_connection(address.host, address.port)
        assert await silent.read() == b""  # it says nothing, and is given up
        writer.close()
        await writer.wait_closed()
        port.close()
        again = await asyncio.start_server(lambda _, __: None, address.host, address.port)  # the address is free
        again.close()

    asyncio.run(run())


def test_with_tls(tmp_path: Path) -> None:
    signer = authority(tmp_path, "authority")
    made = vouched_for(tmp_path, "store", "IP:127.0.0.1", signer)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(made.certificate, made.key)

    async def run() -> None:
        port = StandbyPort(WireSettings(), {"client": "right"}, lambda: "")
        address = StoreAddress.parse(f"tls://127.0.0.1:{free_port()}")
        await port.listen(address, lambda: own)
        trusted = ssl.create_default_context(cafile=str(signer.certificate))
        refused = await asyncio.to_thread(refusal, address, "right", lambda: trusted)
        assert refused.reason == "not_leader"
        port.close()
        again = await asyncio.start_server(lambda _, __: None, address.host, address.port)
        again.close()

    asyncio.run(run())


def test_standby_with_port_zero_does_not_listen() -> None:
    async def run() -> None:
        port = StandbyPort(WireSettings(), {"client": None}, lambda: "")
        await port.listen(StoreAddress.parse("tcp://127.0.0.1:0", any_port=True), None)
        port.close()

    asyncio.run(run())
    with pytest.raises((OSError, StoreAway)):
        connect(StoreAddress.parse(f"tcp://127.0.0.1:{free_port()}"), None, TIMES, Hello([1], Role.CLIENT, "c"))
