"""What a store's conversations with its peers come to."""


class Figures:
    """What all conversations of a server count."""

    def __init__(self) -> None:
        self.appends = 0
        self.reads = 0
        self.pushes = 0
        self.events = 0
        self.named_events = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.not_permitted = 0
