"""Signatures that take long to verify are verified in a thread, those by a secret at once."""

from __future__ import annotations

import asyncio
import threading

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.auth.fair_queue import FairQueue
from gateway.auth.identity import Credentials, Identity, LoginRefused, Verdict
from gateway.auth.settings import AuthSettings
from gateway.auth.tokens import Key, TokenCheck, secret_key
from gateway.auth.workers import FairWorkers, Workers

SECRET = b"s" * 64
PRIVATE = ec.generate_private_key(ec.SECP521R1())
KEYS = (Key(PRIVATE.public_key(), ("ES512",)), secret_key(SECRET))
CLAIMS = {"sub": "anna", "exp": 1 << 32}


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize(
    ("algorithm", "more_bytes", "is_slow"), [("ES512", 0, True), ("HS256", 0, False), ("HS256", 40_000, True)]
)
def test_where_a_signature_is_verified(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, more_bytes: int, is_slow: bool, is_right: bool
) -> None:
    """A long token by a secret as well: 62 KB of small lists held the loop for 12 ms, whoever sent it."""
    threads: list[threading.Thread] = []
    decode = jwt.decode

    def noted(*args: object, **options: object) -> object:
        threads.append(threading.current_thread())
        return decode(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(jwt, "decode", noted)
    other = ec.generate_private_key(ec.SECP521R1())
    key = (PRIVATE if is_right else other) if algorithm == "ES512" else (SECRET if is_right else b"x" * 64)
    token = jwt.encode({**CLAIMS, "more": "x" * more_bytes}, key, algorithm).encode()

    async def verdict() -> Verdict:
        loop = asyncio.get_running_loop()
        workers = Workers(1, loop)
        heard: asyncio.Future[Verdict] = loop.create_future()
        try:
            fair = FairWorkers(workers, FairQueue(1, loop.call_soon), lambda _: False)
            TokenCheck(AuthSettings(), KEYS, None, fair).check(Credentials("c", None, token), heard.set_result)
            assert heard.done() is not is_slow
            return await asyncio.wait_for(heard, 10)
        finally:
            workers.close()

    found = asyncio.run(verdict())
    assert isinstance(found, Identity if is_right else LoginRefused)
    assert {each is threading.main_thread() for each in threads} == {not is_slow}


def test_a_header_that_is_too_long_is_not_read() -> None:
    """It would be, again with each key: 62 KB of it held the loop for 24 ms."""
    token = jwt.encode(CLAIMS, SECRET, "HS256", headers={"x": [[]] * 4_000}).encode()
    heard: list[Verdict] = []
    TokenCheck(AuthSettings(), KEYS, None).check(Credentials("c", None, token), heard.append)
    assert heard == [LoginRefused("token: its header has more than 8192 bytes")]


def test_tokens_have_their_turns_by_address_and_those_of_clients_that_left_are_not_verified() -> None:
    """As passwords do, in the same threads: one that comes from elsewhere is next, however many wait."""
    token = jwt.encode(CLAIMS, PRIVATE, "ES512").encode()
    order: list[str] = []

    async def check_all() -> None:
        loop = asyncio.get_running_loop()
        workers = Workers(1, loop)
        check = TokenCheck(
            AuthSettings(), KEYS, None, FairWorkers(workers, FairQueue(1, loop.call_soon), lambda _: False)
        )
        all_heard = asyncio.Event()

        def heard(_: Verdict) -> None:
            order.append("flood")
            if order.count("flood") == 10:
                all_heard.set()

        flood = [Credentials("c", f"user-{number}", token, source="192.0.2.1") for number in range(20)]
        for each in flood:
            check.check(each, heard)
        for each in flood[10:]:
            assert each.attempt.abandon()
        last: asyncio.Future[Verdict] = loop.create_future()
        check.check(Credentials("c", "anna", token, source="198.51.100.1"), last.set_result)
        try:
            assert isinstance(await asyncio.wait_for(last, 20), Identity)
            order.append("anna")
            await asyncio.wait_for(all_heard.wait(), 20)
        finally:
            workers.close()

    asyncio.run(check_all())
    assert order.index("anna") <= 2
    assert len(order) == 11
