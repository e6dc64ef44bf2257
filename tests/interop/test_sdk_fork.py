"""The blocking client in processes that are forked from one that has it open: gunicorn's preload, multiprocessing."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection

from penstock.sdk.errors import OfParentProcess
from penstock.sync import Client, Subscription
from tests.interop.programs import TIMEOUT_S

FORK = multiprocessing.get_context("fork")


def in_child(client: Client, subscription: Subscription, answers: Connection) -> None:
    """What a worker does with what its parent had made."""
    try:
        try:
            next(iter(subscription))
        except OfParentProcess as error:
            answers.send(str(error))
        offsets: list[int | None] = []

        def publish() -> None:
            offsets.append(client.publish("forked", b"child").queue_offset)

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        answers.send(sorted(str(offset) for offset in offsets))
        client.close()
    except BaseException as error:
        answers.send(error)
        raise


def test_a_forked_process_has_a_connection_of_its_own(url: str) -> None:
    ours, theirs = FORK.Pipe()
    with Client(url, timeout_s=TIMEOUT_S) as client, client.subscribe("forked", group="g") as subscription:
        client.publish("forked", b"parent")
        child = FORK.Process(target=in_child, args=(client, subscription, theirs))
        child.start()
        theirs.close()
        assert ours.poll(TIMEOUT_S)
        assert "begin it anew here" in ours.recv()
        assert ours.poll(TIMEOUT_S)
        assert ours.recv() == ["1", "2", "3", "4"]
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
        # The parent's connection is as it was, and its consumer gets what the child published.
        assert client.publish("forked", b"parent").queue_offset == 5
        payloads = []
        for delivery in subscription:
            payloads.append(delivery.payload)
            assert delivery.ack()
            if len(payloads) == 6:
                break
        assert sorted(payloads) == [b"child"] * 4 + [b"parent"] * 2


def test_a_forked_process_may_close_what_it_did_not_use(url: str) -> None:
    with Client(url, timeout_s=TIMEOUT_S) as client:
        child = FORK.Process(target=client.close)
        child.start()
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
        assert client.publish("forked", b"parent").queue_offset == 0
