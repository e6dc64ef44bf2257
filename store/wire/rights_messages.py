"""Questions of clients about their own permissions, and the store's answers; see store.wire.messages."""

from typing import Annotated

from msgspec import Meta

from store.wire.base import Name, TopicFilter, WireMessage

MOST_TOPICS = 500  # of one Permitted
MOST_READABLE = 100  # of one ReadableFiltersTold
MOST_READABLE_CHARACTERS = 1_024  # of each of them


class Rights(WireMessage, frozen=True):
    """Ask for the client's user, and its permissions besides publishing and subscribing."""


class RightsTold(WireMessage, frozen=True):
    """`user`: empty: the client has no name. `namespace`: empty: the default one; *: all.

    `is_admin`: it may see and touch what other clients have. `reads_log`: it may read the log as a whole. Where the
    store does not authenticate users, each client of the default namespace, or of all, may do both.
    """

    user: Name
    namespace: Name
    is_admin: bool
    reads_log: bool


class Permitted(WireMessage, frozen=True):
    """May I do `action` (as in a permissions file) with these topics, or with all that these filters match?"""

    action: Annotated[str, Meta(max_length=64)]
    topics: Annotated[list[TopicFilter], Meta(max_length=MOST_TOPICS)]


class PermittedTold(WireMessage, frozen=True):
    """The answer for each topic or filter, in the order of the request.

    Those of another namespace are not permitted.
    """

    permitted: Annotated[list[bool], Meta(max_length=MOST_TOPICS)]


class ReadableFilters(WireMessage, frozen=True):
    """Ask for the topic filters that the client may subscribe to, each as a whole."""


class ReadableFiltersTold(WireMessage, frozen=True):
    """`filters`: `#` alone, or those that rules name, wider ones first. `are_all`: False: rules name more."""

    filters: Annotated[list[TopicFilter], Meta(max_length=MOST_READABLE)]
    are_all: bool
