"""The counters of a store's conversations with its peers."""

from collections import defaultdict

from store.log.durations import Durations


class WireCounters:
    """The counters of all conversations of a server."""

    def __init__(self) -> None:
        self.appends = 0
        self.reads = 0
        self.pushes = 0
        self.events = 0
        self.named_events = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.not_permitted = 0
        self.request_times: defaultdict[str, Durations] = defaultdict(Durations)  # by the name of the request
