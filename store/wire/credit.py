"""Flow control: how many bytes of requests may be unanswered. Both sides keep count."""

from store.errors import WireError

Came = tuple[str, float]
"""The name of a request, and when it came: seconds of a clock of the user's."""


class Credit:
    """Requests without an answer so far, and the bytes of their frames.

    The side that asks takes before it sends and gives back when the answer comes; the side that answers does the same,
    and so notices a peer that asks for too much.
    """

    def __init__(self, granted_bytes: int) -> None:
        self.free_bytes = granted_bytes
        self._asked: dict[int, tuple[int, Came]] = {}  # request_id → bytes, and what is given back with it

    def __len__(self) -> int:
        return len(self._asked)

    def fits(self, size_bytes: int) -> bool:
        """Whether a request of this size may be sent now."""
        return size_bytes <= self.free_bytes

    def take(self, request_id: int, size_bytes: int, came: Came = ("", 0.0)) -> None:
        """A request was sent, or came. Raises WireError if there is no credit for it, or its number is in use."""
        if request_id in self._asked:
            raise WireError(f"request_id {request_id} is in use by a request without an answer so far")
        if size_bytes > self.free_bytes:
            raise WireError(f"a request of {size_bytes} bytes with a credit of {self.free_bytes}")
        self.free_bytes -= size_bytes
        self._asked[request_id] = size_bytes, came

    def give(self, request_id: int) -> Came:
        """Give back the credit of a request whose answer came or was sent.

        Raises WireError if there is no such request.
        """
        asked = self._asked.pop(request_id, None)
        if asked is None:
            raise WireError(f"an answer to request_id {request_id}, which nobody asked for")
        self.free_bytes += asked[0]
        return asked[1]
