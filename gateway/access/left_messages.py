"""Wills and delayed messages: the log has the client of each, and judges it again when it is due (docs/adr/0037)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gateway.auth.access import Access
from gateway.auth.bans import Bans
from gateway.auth.left_by import LeftJudge, left_by
from gateway.sessions.connection import Connection
from gateway.sessions.core import Core
from lightqueue.queues.left_messages import Allowed, LeftMessage


class LeftMessageGuard:
    """Judges wills and delayed messages when they are due. Without `access` all of them are sent."""

    def __init__(self, core: Core, access: Access | None, bans: Bans, refused: Counter[str]) -> None:
        """`refused["left"]` counts the messages that are not sent."""
        self._access = access
        self._bans = bans
        self._turn = core.turn
        self._judge = None if access is None else LeftJudge(access, core.events, core.audit, refused, self._is_banned)

    def left_by(self, connection: Connection, client_id: str, topic: str, retain: bool) -> bytes:
        """The note in the log about the client that leaves a message; empty if the message need not be judged.

        Names are those of the log.
        """
        names = connection.names
        client_id, topic = names.plain_client_id(client_id), names.plain_topic(topic)
        return left_by(self._access, connection.identity, client_id, topic, retain)

    def judge(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> None:
        """Find out which of these messages may be sent now."""
        if self._judge is None:
            then(())  # nothing is judged here
        else:
            self._judge.judge(messages, then)

    def _is_banned(self, user: str, client_id: str) -> bool:
        return self._bans.find("", user, client_id, self._turn.now_ms) is not None
