"""Requests of operators: listing clients, sessions and connections, bans, dead letters, figures of servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from lightqueue.errors import LightQueueError
from notify.errors import GroupRefused
from notify.facts import ServerFacts
from notify.limits import BadBan, info_of
from notify.local.dead_letters import DeadLetter, DeadLetterDesk
from notify.local.hub import Hub
from notify.local.store import LocalStore
from notify.requests.listings import ListingEnded, NameSnapshots, find_readers
from notify.requests.receivers import find_receivers, readers_of_all
from store.audit import AuditEvent
from store.errors import StoreError
from store.figures import samples
from store.records.records import read_records
from store.state.changes import BanSet
from store.state.sessions import SessionState
from store.wire import operator_messages as of_operator
from store.wire.base import WireMessage
from store.wire.messages import Failed, FailureCode
from store.wire.operator_messages import (
    ClientInfo,
    ClientShown,
    ClientsListed,
    DeadLetters,
    DeadLettersFound,
    OperatorDone,
    Sample,
    ServerShown,
    SettleDeadLetter,
    ShowServer,
)

SAMPLES_AT_ONCE = 2_000
"""Of one answer, so that encoding it takes less than a millisecond."""
LETTERS_BYTES = 128 << 10  # of dead letters, in one answer
Done = Callable[[WireMessage], None]
LOOKED_AT = 2_000
"""Sessions that one request looks at, and the most that it lists."""
MOST_SUBSCRIPTIONS, SUBSCRIPTIONS_BYTES = 1_000, 128 << 10
"""Of one session that are shown."""
MOST_BANS_LISTED = 1_000
MOST_GATEWAYS_LISTED = 1_000


def show_server(facts: ServerFacts, request: ShowServer, done: Callable[[ServerShown], None]) -> Iterator[None]:
    """`done` gets the answer. Figures are read a step at a time, and told some thousand at a time."""
    found: list[Sample] = []
    number = 0
    end = request.after + SAMPLES_AT_ONCE
    for step in facts.readings():
        yield
        for reading in step:
            for name, labels, value in samples(reading):
                if request.after <= number < end:
                    found.append((name, labels, value))
                number += 1
            yield
    is_first = not request.after
    done(
        ServerShown(
            facts.version,
            facts.started_ms,
            facts.settings if is_first else "",
            facts.health(),
            facts.unready(),
            found,
            end if number > end else None,
        )
    )


def list_dead_letters(hub: Hub, request: DeadLetters, done: Done) -> Iterator[None]:
    """A letter that is larger than LETTERS_BYTES comes alone, and without its record."""

    desk = DeadLetterDesk(hub.messages)
    end = desk.end(request.group)

    def then(found: list[DeadLetter], after: int | None) -> None:
        large = tuple(_place(each) for each in found if not _shown_of(each.data))
        done(DeadLettersFound([(each.queue_offset, _shown_of(each.data)) for each in found], after, end, large))

    return desk.listed(request.group, request.after, request.limit, LETTERS_BYTES, then)


def settle_dead_letter(hub: Hub, request: SettleDeadLetter, done: Done) -> None:
    """Raises StoreError, GroupRefused."""
    letter = request.queue_offset, request.log_offset
    found = DeadLetterDesk(hub.messages).settle(request.group, letter, request.again, hub.messages.now_ms())
    if found:
        hub.tell_changes()
        what = "published again" if request.again else "dropped"
        reason = f"{request.by} {what} dead letter {request.queue_offset} of group {request.group}"
        hub.bans.audit.note(AuditEvent.OPERATOR, reason=reason)
    done(OperatorDone(found))


def _shown_of(data: bytes) -> bytes:
    return data if len(data) <= LETTERS_BYTES else b""


def _place(letter: DeadLetter) -> tuple[int, int, int]:
    (record,) = read_records(memoryview(letter.data))
    return letter.queue_offset, record.log_offset, len(letter.data)


class OperatorRequests:
    """Answers the operators of one connection."""

    def __init__(self, hub: Hub, store: LocalStore) -> None:
        self._hub = hub
        self._store = store
        self._names = NameSnapshots(hub.claims.client_ids)
        self._readers = NameSnapshots(lambda: readers_of_all(hub))

    def do(self, message: WireMessage, done: Done) -> Iterator[None] | None:
        """Handle a request; what it returns is to be iterated over, in steps. `done` gets the answer, now or later, to
        be sent once the log is safe.
        """
        try:
            return _ACTIONS[type(message)](self, message, done)
        except (BadBan, ListingEnded, GroupRefused, LightQueueError) as error:
            done(Failed(FailureCode.BAD_REQUEST, str(error)))
        except StoreError as error:
            done(Failed(FailureCode.UNAVAILABLE, str(error)))
        return None

    # --- looking

    def _show_server(self, request: of_operator.ShowServer, done: Done) -> Iterator[None] | None:
        facts = self._hub.facts
        if facts is not None:
            return show_server(facts, request, done)
        done(Failed(FailureCode.UNAVAILABLE, "this server tells nothing of itself"))
        return None

    def _find_readers(self, request: of_operator.TopicReaders, done: Done) -> Iterator[None]:
        return find_readers(self._hub, self._names, request, done)

    def _list(self, request: of_operator.ListClients, done: Done) -> None:
        """List some thousand client identifiers at a time, of those present at a listing's first request."""
        names = self._names.page(request.after, LOOKED_AT)
        clients = [
            info
            for client_id in names
            if client_id.startswith(request.prefix)
            and (info := self._info(client_id)) is not None
            and (info.online or not request.online)
            and names.takes(client_id, info.user or "", info.gateway, info.address)
        ]
        done(ClientsListed(clients, names.after))

    def _show(self, request: of_operator.ShowClient, done: Done) -> None:
        info = self._info(request.client_id)
        state = self._hub.messages.sessions.get(request.client_id)
        if state is None:
            done(ClientShown(info, [], False, 0))
            return
        subscriptions: list[tuple[str, int]] = []
        left_bytes = SUBSCRIPTIONS_BYTES
        for each in islice(state.subscriptions.values(), MOST_SUBSCRIPTIONS):
            left_bytes -= len(each.topic_filter.encode())
            if left_bytes < 0:
                break
            subscriptions.append((each.topic_filter, each.qos))
        done(ClientShown(info, subscriptions, state.will is not None, state.acked))

    def _describe(self, request: of_operator.DescribeClient, done: Done) -> None:
        holder = self._hub.claims.holder(request.client_id)
        if holder is None:
            done(of_operator.ClientDescribed(None))
        else:
            holder.sessions.describe(request.client_id, lambda details: done(of_operator.ClientDescribed(details)))

    def _list_gateways(self, _: of_operator.ListGateways, done: Done) -> None:
        done(of_operator.GatewaysListed(list(islice(self._hub.gateways, MOST_GATEWAYS_LISTED))))

    def _show_gateway(self, request: of_operator.ShowGateway, done: Done) -> None:
        gateway = self._hub.gateways.get(request.gateway)
        if gateway is None:
            done(of_operator.GatewayShown(None))
        else:
            gateway.sessions.report(request.after, lambda report: done(of_operator.GatewayShown(report)))

    def _info(self, client_id: str) -> ClientInfo | None:
        hub = self._hub
        state: SessionState | None = hub.messages.sessions.get(client_id)
        holder = hub.claims.holder(client_id)
        if state is None and holder is None:
            return None
        address, since_ms = hub.claims.presence_of(client_id) or ("", 0)
        return ClientInfo(
            client_id,
            hub.claims.owner(client_id),
            holder is not None,
            holder.name if holder is not None else "",
            address if holder is not None else "",
            since_ms if holder is not None else state.closed_at_ms if state is not None else 0,
            len(state.subscriptions) if state is not None else 0,
            state.session_expiry_interval if state is not None else 0,
        )

    # --- acting

    def _disconnect(self, request: of_operator.DisconnectClient, done: Done) -> None:
        holder = self._hub.claims.holder(request.client_id)
        if holder is not None:
            self._note(request, f"disconnected the client: {request.reason}")
            holder.sessions.told(of_operator.Disconnect(request.client_id, request.reason))
        done(OperatorDone(holder is not None))

    def _end(self, request: of_operator.EndSession, done: Done) -> None:
        """End a session: claim it as a client with Clean Start does, and release it."""
        client_id = request.client_id
        holder = self._hub.claims.holder(client_id)
        if holder is None and self._hub.messages.sessions.get(client_id) is None:
            done(OperatorDone(False))
            return
        self._note(request, "ended the session")
        if holder is not None:
            holder.sessions.told(of_operator.Disconnect(client_id, "an operator ended the session"))
        self._store.sessions.claim(client_id, True, partial(self._claimed, client_id, done))

    def _claimed(self, client_id: str, done: Done, _: object) -> None:
        self._store.sessions.release(client_id)
        done(OperatorDone(True))

    def _assign(self, request: of_operator.AssignSession, done: Done) -> None:
        found = self._hub.claims.assign(request.client_id, request.user)
        if found:
            self._note(request, f"gave the session to user {request.user}")
        done(OperatorDone(found))

    def _note(self, request: Any, reason: str) -> None:
        client_id = request.client_id
        self._hub.bans.audit.note(AuditEvent.OPERATOR, client_id=client_id, reason=f"{request.by} {reason}")

    # --- bans

    def _add_ban(self, request: of_operator.AddBan, done: Done) -> None:
        until_ms = self._hub.messages.now_ms() + 1_000 * request.for_s if request.for_s else 0
        self._hub.bans.set(BanSet(request.kind, request.value, until_ms, request.reason, request.by))
        done(OperatorDone(True))

    def _lift_ban(self, request: of_operator.LiftBan, done: Done) -> None:
        done(OperatorDone(self._hub.bans.lift(request.kind, request.value, request.by)))

    def _list_bans(self, request: of_operator.ListBans, done: Done) -> None:
        bans = self._hub.bans.in_force()
        end = request.after + min(request.limit, MOST_BANS_LISTED)
        infos = [info_of(state) for state in bans[request.after : end]]
        done(of_operator.BansListed(infos, end if end < len(bans) else None))

    # --- readers of the log

    def _list_log_readers(self, _: of_operator.ListLogReaders, done: Done) -> None:
        done(of_operator.LogReadersListed(self._hub.readers.infos()))

    def _forget_log_reader(self, request: of_operator.ForgetLogReader, done: Done) -> None:
        done(OperatorDone(self._hub.readers.forget(request.reader, request.by)))


_ACTIONS: dict[type[WireMessage], Callable[[OperatorRequests, Any, Done], Iterator[None] | None]] = {
    of_operator.ShowServer: OperatorRequests._show_server,
    of_operator.TopicReaders: OperatorRequests._find_readers,
    of_operator.MessageReceivers: lambda self, request, done: find_receivers(self._hub, self._readers, request, done),
    of_operator.DeadLetters: lambda self, request, done: list_dead_letters(self._hub, request, done),
    of_operator.SettleDeadLetter: lambda self, request, done: settle_dead_letter(self._hub, request, done),
    of_operator.ListClients: OperatorRequests._list,
    of_operator.ShowClient: OperatorRequests._show,
    of_operator.DescribeClient: OperatorRequests._describe,
    of_operator.ListGateways: OperatorRequests._list_gateways,
    of_operator.ShowGateway: OperatorRequests._show_gateway,
    of_operator.DisconnectClient: OperatorRequests._disconnect,
    of_operator.EndSession: OperatorRequests._end,
    of_operator.AssignSession: OperatorRequests._assign,
    of_operator.AddBan: OperatorRequests._add_ban,
    of_operator.LiftBan: OperatorRequests._lift_ban,
    of_operator.ListBans: OperatorRequests._list_bans,
    of_operator.ListLogReaders: OperatorRequests._list_log_readers,
    of_operator.ForgetLogReader: OperatorRequests._forget_log_reader,
}
REQUESTS = tuple(_ACTIONS)
