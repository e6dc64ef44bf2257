"""The users of wills and delayed messages: noted with the message, and authorized when it is sent (ADR 37). No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from gateway.auth.access import Access, Question
from gateway.auth.identity import Identity
from gateway.auth.permissions import MAX_QOS, REFUSED, UNANSWERED, Action
from lightqueue.queues.left_messages import Allowed, LeftMessage
from notify.steps import Awaited
from store.audit import Audit, AuditEvent
from store.namespaces import Namespace
from store.ratelimit import RateLimitedLog
from store.state.left_by import PUBLISH, RETAIN, LeftBy, decode, encode


def publishing(retain: bool) -> tuple[Action, ...]:
    """The actions that publishing a message needs."""
    return (Action.PUBLISH, Action.RETAIN) if retain else (Action.PUBLISH,)


_BITS = {Action.PUBLISH: PUBLISH, Action.RETAIN: RETAIN}


def left_by(access: Access | None, identity: Identity | None, client_id: str, topic: str, retain: bool) -> bytes:
    """The user of a message as stored in the log; empty if users are not known and no permission applies.

    It includes the client's own rules for this message: they are not known any more when it is due.
    """
    if access is None or identity is None or not (access.knows_users or not access.is_open_to(identity)):
        return b""
    own = 0
    for action in publishing(retain):
        question = Question(identity.username, client_id, action, topic, identity.namespace)
        if access.by_own_rules(identity, question):
            own |= _BITS[action]
    login = (identity.login or identity.username) if identity.verifier else None
    return encode(LeftBy(identity.username, identity.namespace, login, identity.key, own))


def left_by_client(access: Access, identity: Identity) -> bytes:
    """The user of an SDK client, for all messages of one connection.

    If it has rules of its own, publishing and retaining count as allowed by them.
    """
    if not access.knows_users and access.is_open_to(identity):
        return b""
    own = 0 if identity.rules is None else PUBLISH | RETAIN
    login = (identity.login or identity.username) if identity.verifier else None
    return encode(LeftBy(identity.username, identity.namespace, login, identity.key, own, is_client=True))


def judge(access: Access, left: LeftBy, client_id: str, topic: str, retain: bool, then: Callable[[int], None]) -> None:
    """Find the highest QoS at which a message may be sent, REFUSED or UNANSWERED, and call `then` with it.

    Names are as the message's client knows them.
    """
    if not access.has_still(left.login, left.key):
        then(REFUSED)
        return
    user, namespace = left.user, left.namespace
    questions = [
        Question(user, client_id, action, topic, namespace)
        for action in publishing(retain)
        if not left.own & _BITS[action]
    ]
    ask_all(access, Identity(user, namespace=namespace), questions, then)


class LeftJudge:
    """Authorizes messages that are due, and logs those that are dropped."""

    def __init__(
        self,
        access: Access,
        events: RateLimitedLog,
        audit: Audit,
        refused: Counter[str],
        is_banned: Callable[[str, str], bool] = lambda user, client_id: False,
    ) -> None:
        """`refused["left"]` counts dropped messages; `is_banned`: of a user or a client identifier, as in the log."""
        self._access = access
        self._events = events
        self._audit = audit
        self._is_banned = is_banned
        self._refused = refused

    def judge(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> None:
        """Decide for each message whether it may be sent now; None: no answer."""
        answers: list[bool | None] = [None] * len(messages)
        awaited = Awaited(len(messages), lambda: then(answers))

        def heard(number: int, allowed: int) -> None:
            if allowed != UNANSWERED:
                answers[number] = allowed >= messages[number].qos
            if answers[number] is False:
                self._say_dropped(messages[number])
            awaited.came()

        for number, message in enumerate(messages):
            self._judge(message, partial(heard, number))

    def _judge(self, message: LeftMessage, then: Callable[[int], None]) -> None:
        left, client_id = decode(message.left_by), message.client_id.decode()
        if left is None or self._is_banned(_account(left), client_id):
            then(REFUSED)
            return
        names = Namespace(left.namespace)
        client_id, topic = names.plain_client_id(client_id), names.plain_topic(message.topic)
        judge(self._access, left, client_id, topic, message.retain, then)

    def _say_dropped(self, message: LeftMessage) -> None:
        self._refused["left"] += 1
        left, client_id = decode(message.left_by), message.client_id.decode()
        user = _account(left) if left is not None else ""
        who = f"client {client_id}" if client_id else f"user {user}"
        dropped = "%s: its will or delayed message to %s is not sent: no longer allowed"
        self._events.warning("permission", dropped, who, message.topic)
        reason = f"send a will or delayed message to {message.topic}"
        self._audit.note(AuditEvent.DENIED, user=user, client_id=client_id, reason=reason)


def _account(left: LeftBy) -> str:
    return Identity(left.user, namespace=left.namespace).account


def ask_all(access: Access, identity: Identity, questions: Sequence[Question], then: Callable[[int], None]) -> None:
    """Call `then` with the lowest QoS allowed by all of these questions; at once if all answers are known."""
    if not questions:
        then(MAX_QOS)
    lowest = MAX_QOS
    awaited = Awaited(len(questions), lambda: then(lowest))

    def heard(allowed: int) -> None:
        nonlocal lowest
        lowest = min(lowest, allowed)
        awaited.came()

    for question in questions:
        known = access.decide(identity, question)
        if known is None:
            access.ask(question, heard)
        else:
            heard(known)
