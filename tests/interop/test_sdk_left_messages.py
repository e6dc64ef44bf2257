"""Delayed messages of SDK users are judged when they are due, by a store that has users."""

from __future__ import annotations

import signal
from pathlib import Path

from penstock.sync import Client
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_sdk_users import RULES, Site, payloads
from tests.interop.test_sdk_users import site as site
from tests.support.stores import wait_until

NO_LINE_9 = '[[rule]]\nusers = ["alice"]\ndeny = ["publish"]\ntopics = ["line/9"]\n' + RULES
LATE_S = 2


def leave(client: Client) -> None:
    client.publish("line/9", b"9", delay=LATE_S)
    client.publish("line/1", b"1", delay=LATE_S, retain=True)


def reload(site: Site) -> None:
    site.store.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reloaded: authentication" in site.store.log_text(), TIMEOUT_S)


def dropped(site: Site, topic: str) -> bool:
    return f"user alice: its will or delayed message to {topic} is not sent" in site.store.log_text()


def test_delayed_messages_of_permitted_users_are_sent(site: Site) -> None:
    leave(site.alice())
    wait_until(lambda: payloads(site.root(), "line/#") == [b"9", b"1"], TIMEOUT_S)


def test_a_right_that_was_taken_away(site: Site) -> None:
    alice = site.alice()
    leave(alice)
    site.rules.write_text(NO_LINE_9)
    reload(site)
    leave(site.root())
    wait_until(lambda: dropped(site, "line/9"), TIMEOUT_S)
    wait_until(lambda: len(payloads(site.root(), "line/#")) == 3, TIMEOUT_S)
    assert sorted(payloads(site.root(), "line/#")) == [b"1", b"1", b"9"]
    alice.publish("line/1", b"again", delay=0)  # it was let in anew, and says who leaves it
    wait_until(lambda: b"again" in payloads(site.root(), "line/1"), TIMEOUT_S)


def test_a_user_who_was_deleted(site: Site) -> None:
    leave(site.alice())
    others = [line for line in site.passwords.read_text().splitlines(keepends=True) if not line.startswith("alice:")]
    site.passwords.write_text("".join(others))
    reload(site)
    leave(site.root())
    wait_until(lambda: dropped(site, "line/9") and dropped(site, "line/1"), TIMEOUT_S)
    wait_until(lambda: len(payloads(site.root(), "line/#")) == 2, TIMEOUT_S)


def test_across_a_kill(tmp_path: Path, site: Site) -> None:
    """What the store was told it has, and judges when it is back."""
    leave(site.alice())
    site.store.process.kill()
    site.store.process.wait()
    site.rules.write_text(NO_LINE_9)
    site.store.start()
    wait_until(lambda: dropped(site, "line/9"), TIMEOUT_S)
    wait_until(lambda: payloads(site.root(), "line/#") == [b"1"], TIMEOUT_S)
