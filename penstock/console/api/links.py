"""Links of the OpenAPI document: which operation takes what another one answered, and how it is named there."""

from __future__ import annotations

from typing import Any

_CLIENT = {"client_id": "$response.body#/clients/0/client_id"}
_GROUP = {"group": "$response.body#/groups/0/group", "filter": "$response.body#/groups/0/topic_filter"}
_NAME = {"group": _GROUP["group"]}
_PUBLISHED = {"message_id": "$response.body#/message_id"}
_NEXT = "$response.body#/next"
LINKS: dict[str, dict[str, dict[str, str]]] = {
    "publish_messages": dict.fromkeys(("get_message", "list_receivers"), _PUBLISHED),
    "publish_events": {"get_message": _PUBLISHED},
    "list_receivers": {"list_receivers": {"message_id": "$request.path.message_id", "after": _NEXT}},
    "read_messages": {
        "read_messages": {"cursor": _NEXT, "filter": "$request.query.filter"},
        "get_message": {"message_id": "$response.body#/messages/0/message_id"},
    },
    "list_topics": {
        "get_topic": {"topic": "$response.body#/topics/0/topic"},
        "read_series": {"topic": "$response.body#/topics/0/topic"},
        "list_readers": {"topic": "$response.body#/topics/0/topic"},
    },
    "list_clients": {"get_client": _CLIENT, "disconnect_client": _CLIENT, "end_client_session": _CLIENT},
    "list_bans": {"lift_ban": {"kind": "$response.body#/bans/0/kind", "value": "$response.body#/bans/0/value"}},
    "add_ban": {"lift_ban": {"kind": "$request.body#/kind", "value": "$request.body#/value"}},
    "list_groups": {
        "get_group": _GROUP,
        "move_group": _GROUP,
        "pause_group": _GROUP,
        "resume_group": _GROUP,
        "drop_group": _GROUP,
        "list_dead_letters": _NAME,
        "publish_dead_letters": _NAME,
        "drop_dead_letters": _NAME,
    },
    "list_dead_letters": {
        "list_dead_letters": {"group": "$request.path.group", "after": _NEXT},
        "get_dead_letter": {
            "group": "$request.path.group",
            "queue_offset": "$response.body#/dead_letters/0/queue_offset",
        },
    },
    "list_delayed": {
        "cancel_delayed": {
            "log_offset": "$response.body#/delayed/0/log_offset",
            "due_ms": "$response.body#/delayed/0/due_ms",
        },
    },
    "list_retained": {
        "list_retained": {"after": _NEXT, "filter": "$request.query.filter"},
        "remove_retained": {"topic": "$response.body#/messages/0/topic"},
    },
}
"""By the operation that answers and the one that is asked then: its parameters."""


def add_links(operation: dict[str, Any]) -> None:
    """To the answer of an operation that succeeds."""
    found = LINKS.get(operation["operationId"])
    if found is not None:
        answer = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
        answer["links"] = {name: {"operationId": name, "parameters": given} for name, given in found.items()}
