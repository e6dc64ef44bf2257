"""What an SDK client is told of its own rights: by a permissions file, a hook, a namespace, and without users."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Client as AsyncClient
from penstock import UserRights
from penstock.sdk.errors import StoreRefused
from penstock.sync import Client
from store.wire import rights_messages as of_rights
from store.wire.messages import Role
from store.wire.rights_messages import MOST_TOPICS, Permitted
from tests.interop.programs import TIMEOUT_S
from tests.support.http_answers import HttpAnswers
from tests.support.mqtt_packet_client import write_passwords
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

RULES = """
default = "allow"

[[rule]]
users = ["ops"]
allow = ["publish", "subscribe", "replay", "read_log", "admin"]
topics = ["#", "$dead/#"]

[[rule]]
deny = ["subscribe"]
topics = ["line/secret"]

[[rule]]
users = ["alice"]
allow = ["publish", "subscribe"]
topics = ["line/#", "users/%u/#"]

[[rule]]
users = ["alice"]
deny = ["publish", "retain", "subscribe", "replay"]
topics = ["#", "$dead/#"]
"""
TOPICS = ["line/1", "line/#", "line/+", "line/secret", "users/alice/x", "users/bob/x", "#", "$dead/g/line/1"]


def client(store: StoreProcess, user: str = "", **options: Any) -> Client:
    url = store.url.replace("tcp://", "penstock://")
    return Client(url, user=user, password=user, timeout_s=TIMEOUT_S, **options)


def passwords_of(folder: Path, *users: str) -> Path:
    return write_passwords(folder / "passwords", {user: user for user in users})


@pytest.fixture
def judging(tmp_path: Path) -> Iterator[StoreProcess]:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    passwords = passwords_of(tmp_path, "alice", "ops")
    running = StoreProcess(tmp_path, settings={"auth.password_file": passwords, "auth.permissions_file": rules})
    yield running
    running.close()


def test_client_is_told_its_rights_by_the_rules(judging: StoreProcess) -> None:
    with client(judging, "alice") as alice, client(judging, "ops") as ops:
        assert alice.rights() == UserRights("alice", "", is_admin=False, reads_log=False)
        assert ops.rights() == UserRights("ops", "", is_admin=True, reads_log=True)
        allowed = {
            action: [topic for topic, may in zip(TOPICS, alice.permitted(action, TOPICS), strict=True) if may]
            for action in ("publish", "retain", "subscribe", "replay", "read_log", "admin")
        }
        assert allowed == {
            "publish": ["line/1", "line/#", "line/+", "line/secret", "users/alice/x", "$dead/g/line/1"],
            "retain": [],
            "subscribe": ["line/1", "users/alice/x", "$dead/g/line/1"],
            "replay": [],
            "read_log": [],
            "admin": [],
        }
        assert ops.permitted("admin", ["#"]) == [True]
        assert ops.permitted("subscribe", []) == []
        many = [f"line/{number}" for number in range(3 * MOST_TOPICS + 1)] + ["other"]
        assert alice.permitted("publish", many) == [True] * (3 * MOST_TOPICS + 1) + [False]
        long = ["line/" + "x" * 60_000] * 40
        assert alice.permitted("publish", long) == [True] * 40
        for action in ("delete", "", "x" * 60):
            with pytest.raises(StoreRefused, match="is no action; there are publish, retain, subscribe"):
                alice.permitted(action, ["line/1"])
        assert alice.permitted("publish", ["line/1"]) == [True]  # the connection goes on


def test_the_next_answer_after_a_reload_is_the_new_one(judging: StoreProcess, tmp_path: Path) -> None:
    with client(judging, "alice") as alice:
        assert (alice.rights().is_admin, alice.permitted("publish", ["line/1"])) == (False, [True])
        new = RULES.replace('users = ["ops"]', 'users = ["alice"]').replace('"line/#", ', "")
        (tmp_path / "rules.toml").write_text(
            new.replace('allow = ["publish", "subscribe", "replay"', 'allow = ["replay"')
        )
        judging.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded: authentication" in judging.log_text(), TIMEOUT_S)
        assert (alice.rights().is_admin, alice.permitted("publish", ["line/1"])) == (True, [False])


@pytest.mark.parametrize("has_users", [False, True])
def test_without_rules(tmp_path: Path, has_users: bool) -> None:
    """Users without rules may do everything, and are still no admins: a right that each new user would have is none."""
    settings = {"auth.password_file": passwords_of(tmp_path, "alice")} if has_users else {}
    store = StoreProcess(tmp_path, settings=settings)
    try:
        with client(store, "alice" if has_users else "") as one:
            assert one.rights() == UserRights("alice" if has_users else "", "", not has_users, not has_users)
            assert one.permitted("subscribe", ["#", "line/1"]) == [True, True]
            assert one.permitted("admin", ["#"]) == [not has_users]
    finally:
        store.close()


def test_a_namespace_has_no_admin(tmp_path: Path) -> None:
    """Not even where a rule without namespaces names its user."""
    tokens, rules = tmp_path / "tokens", tmp_path / "rules.toml"
    tokens.write_text("acme acme-secret\n")
    tokens.chmod(0o600)
    rules.write_text(
        '[[rule]]\nallow = ["admin", "read_log", "publish", "subscribe", "replay"]\ntopics = ["#", "$dead/#"]'
    )
    settings = {"wire.client_token": "for-all", "wire.namespace_tokens_file": tokens}
    users = {"auth.password_file": passwords_of(tmp_path, "ops"), "auth.permissions_file": rules}
    for more, user in (({}, ""), (users, "ops")):
        store = StoreProcess(tmp_path, settings=settings | more)
        try:
            with client(store, user, token="acme-secret") as tenant:
                assert tenant.rights() == UserRights(user, "acme", is_admin=False, reads_log=False)
                assert tenant.permitted("publish", ["line/1"]) == [True]
                assert tenant.permitted("admin", ["#"]) == [False]
            with client(store, user, token="for-all", namespace="*") as all_of_them:
                assert all_of_them.rights() == UserRights(user, "*", is_admin=True, reads_log=True)
        finally:
            store.close()
    store = StoreProcess(tmp_path, settings=settings)
    try:
        peer = store.connect("tenant", Role.CLIENT, "acme-secret")
        others = peer.call(Permitted("publish", ["line/1", "$ns:acme/line/1", "$ns:beta/line/1"]))
        assert others == of_rights.PermittedTold([False, True, False])
    finally:
        store.close()


def test_a_hook_is_asked(tmp_path: Path) -> None:
    hook = HttpAnswers(lambda _, body: (200, {"result": "allow" if body["topic"] in ("line/1", "#") else "deny"}))
    settings = {
        "auth.password_file": passwords_of(tmp_path, "alice"),
        "auth.http_permission_url": f"{hook.url}/may",
    }
    store = StoreProcess(tmp_path, settings=settings)
    try:
        asyncio.run(_ask_the_hook(store, hook))
    finally:
        store.close()
        hook.close()


async def _ask_the_hook(store: StoreProcess, hook: HttpAnswers) -> None:
    url = store.url.replace("tcp://", "penstock://")
    async with asyncio.timeout(60), AsyncClient(url, user="alice", password="alice", timeout_s=30) as alice:
        topics = [f"line/{number}" for number in range(300)]
        answers = [asyncio.create_task(alice.permitted("publish", topics)) for _ in range(3)]
        rights = await alice.rights()
        assert (rights.is_admin, rights.reads_log) == (True, True)
        assert [await each for each in answers] == [[number == 1 for number in range(300)]] * 3
        asked = [(body["action"], body["topic"]) for _, body, _ in hook.asked]
        assert {("admin", "#"), ("read_log", "#"), ("publish", "line/299")} <= set(asked)
        receipt = await alice.publish("line/1", b"and the connection goes on")
        assert receipt.log_offset >= 0
