"""What a client's user may do: the SDK's side of Rights and Permitted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.sdk.errors import StoreRefused
from store.namespaces import Namespace
from store.wire import messages as wire
from store.wire import rights_messages as of_rights
from store.wire.handshake import RIGHTS_VERSION
from store.wire.messages import FailureCode

MOST_CHARACTERS = 64 << 10  # of the topics in one request, beside its first one

Ask = Callable[[wire.WireMessage], Awaitable[tuple[wire.WireMessage, memoryview]]]


class UserRights(NamedTuple):
    """What a client may do besides publishing and subscribing.

    `user`: its name (empty: the client has none); `namespace`: empty: the default one, *: all. `is_admin`: it has the
    right `admin`. `reads_log`: it may read the store's log as a whole. Without users at the store both are true.
    """

    user: str
    namespace: str
    is_admin: bool
    reads_log: bool


async def rights(ask: Ask, welcome: wire.Welcome | None) -> UserRights:
    """Ask the store. Raises a ClientError."""
    _check(welcome)
    answer, _ = await ask(of_rights.Rights())
    assert isinstance(answer, of_rights.RightsTold)
    return UserRights(answer.user, answer.namespace, answer.is_admin, answer.reads_log)


async def permitted(
    ask: Ask, welcome: wire.Welcome | None, names: Namespace, action: str, topics: Sequence[str]
) -> list[bool]:
    """Ask the store, some hundred topics at a time. Raises a ClientError."""
    _check(welcome)
    found: list[bool] = []
    for some in _pages([names.topic(topic) for topic in topics]):
        answer, _ = await ask(of_rights.Permitted(action, some))
        assert isinstance(answer, of_rights.PermittedTold)
        found += answer.permitted
    return found


def _check(welcome: wire.Welcome | None) -> None:
    """Raise StoreRefused if the store is too old: it would end the connection."""
    if welcome is not None and welcome.version < RIGHTS_VERSION:
        text = "it is older than this client and does not tell what a user may do; upgrade the store"
        raise StoreRefused(FailureCode.BAD_REQUEST, text)


def _pages(topics: list[str]) -> Iterator[list[str]]:
    page: list[str] = []
    characters = 0
    for topic in topics:
        if len(page) == of_rights.MOST_TOPICS or (page and characters + len(topic) > MOST_CHARACTERS):
            yield page
            page, characters = [], 0
        page.append(topic)
        characters += len(topic)
    if page:
        yield page
