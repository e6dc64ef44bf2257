"""Questions of a client about its own permissions. Another server may have to decide, so answers may come later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from notify.local.own_names import OwnNames
from notify.requests.permissions import ADMIN, OF_THE_STORE, SUBSCRIBE, WHOLE_LOG, plain_permission
from notify.requests.users import ConnectionPermits, Permission
from store.namespaces import SERVERS_LEVELS
from store.wire import rights_messages as of_rights
from store.wire.base import WireMessage
from store.wire.messages import Failed, FailureCode

ACTIONS = ("publish", "retain", "subscribe", "replay", *OF_THE_STORE)
MOST_SHOWN = 64  # characters of an unknown action in an error
MOST_LOOKED_AT = 1_000  # filters of a user's rules
LOOKED_AT_ONCE = 50  # of them, in a step
EVERYTHING = "#"
NOT_STORED = SERVERS_LEVELS - {"$dead"}
"""First levels of topics that have no history."""

Done = Callable[[WireMessage], None]
Question = of_rights.Rights | of_rights.Permitted | of_rights.ReadableFilters


class RightsRequests:
    """Answers one client, one request after another."""

    def __init__(self, permits: ConnectionPermits, own: OwnNames, waits: Callable[[], None]) -> None:
        """`waits`: the next answer comes later, and no other request is to be handled before it."""
        self._permits = permits
        self._own = own
        self._waits = waits

    def do(self, request: Question, done: Done) -> Iterator[None]:
        """Handle a request, a topic at a time. `done` gets the answer, once."""
        if isinstance(request, of_rights.Rights):
            return self._decide([ADMIN, *WHOLE_LOG], lambda found: done(self._rights(found)))
        if isinstance(request, of_rights.ReadableFilters):
            return self._find_readable(done)
        if request.action not in ACTIONS:
            text = f"{request.action[:MOST_SHOWN]!r} is no action; there are {', '.join(ACTIONS)}"
            done(Failed(FailureCode.BAD_REQUEST, text))
            return iter(())
        wanted = [self._plain(request.action, topic) for topic in request.topics]
        return self._decide(wanted, lambda found: done(of_rights.PermittedTold(found)))

    def _rights(self, found: list[bool]) -> of_rights.RightsTold:
        names = self._own.names
        is_admin, reads_log = found[0] and not names.name, all(found[1:]) and not names.name
        return of_rights.RightsTold(self._own.user(self._permits.name), self._own.namespace, is_admin, reads_log)

    def _find_readable(self, done: Done) -> Iterator[None]:
        """Filters of rules that no other rule narrows. A `#` needs no rule where the default allows it."""
        if self._permits.known(Permission(SUBSCRIBE, EVERYTHING)):
            done(of_rights.ReadableFiltersTold([self._own.names.topic(EVERYTHING)], True))
            return
        found: dict[str, None] = {EVERYTHING: None}  # another server may allow it
        looked_at = -1
        for looked_at, each in enumerate(islice(self._permits.filters(), MOST_LOOKED_AT)):
            if self._may_be_told(each):
                found[each] = None
            if looked_at % LOOKED_AT_ONCE == 0:
                yield
        filters = sorted(found, key=lambda each: (each.count("/"), not each.endswith("#"), each))
        are_all = looked_at + 1 < MOST_LOOKED_AT
        wanted = [Permission(SUBSCRIBE, each) for each in filters]
        yield from self._decide(wanted, lambda found: done(self._readable(filters, found, are_all)))

    def _may_be_told(self, topic_filter: str) -> bool:
        """True if a topic filter is one of stored topics of this namespace, and not too long."""
        if len(topic_filter) > of_rights.MOST_READABLE_CHARACTERS or topic_filter.split("/")[0] in NOT_STORED:
            return False
        return self._own.has_topic(self._own.names.topic(topic_filter))

    def _readable(self, filters: list[str], permitted: list[bool], are_all: bool) -> of_rights.ReadableFiltersTold:
        names, most = self._own.names, of_rights.MOST_READABLE
        found = [names.topic(each) for each, is_permitted in zip(filters, permitted, strict=True) if is_permitted]
        if found[:1] == [names.topic(EVERYTHING)]:
            return of_rights.ReadableFiltersTold(found[:1], True)
        return of_rights.ReadableFiltersTold(found[:most], are_all and len(found) <= most)

    def _plain(self, action: str, topic: str) -> Permission | None:
        """A permission with the name as the rules know it; None: the topic is of another namespace."""
        if not self._own.has_topic(topic) or (self._own.names.name and action in OF_THE_STORE):
            return None
        return plain_permission(Permission(action, topic), self._own.names)

    def _decide(self, wanted: Sequence[Permission | None], then: Callable[[list[bool]], None]) -> Iterator[None]:
        found: list[bool] = []
        open_ones: list[tuple[int, Permission]] = []
        for number, each in enumerate(wanted):
            allowed = self._permits.known(each) if each is not None else False
            if allowed is None and each is not None:
                open_ones.append((number, each))
            found.append(bool(allowed))
            yield
        if not open_ones:
            then(found)
            return
        self._waits()
        _Asking(self._permits, found, open_ones, then).go_on()


class _Asking:
    """Asks another server about one permission after another."""

    def __init__(
        self,
        permits: ConnectionPermits,
        found: list[bool],
        open_ones: list[tuple[int, Permission]],
        then: Callable[[list[bool]], None],
    ) -> None:
        self._permits = permits
        self._found = found
        self._open = open_ones
        self._then = then
        self._is_waiting = self._is_in_loop = False

    def go_on(self) -> None:
        """Ask until an answer comes later. Answers that come at once do not deepen the stack."""
        self._is_in_loop = True
        while self._open and not self._is_waiting:
            self._is_waiting = True
            self._permits.ask(self._open[-1][1], self._heard)
        self._is_in_loop = False
        if not self._open:
            self._then(self._found)

    def _heard(self, allowed: bool | None) -> None:
        number, _ = self._open.pop()
        self._found[number] = allowed is True
        self._is_waiting = False
        if not self._is_in_loop:
            self.go_on()
