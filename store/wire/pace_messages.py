"""How gateways and their store keep publishers from being faster than subscribers without acknowledgements (QoS 0)."""

from store.wire.base import WireMessage


class Behind(WireMessage, frozen=True):
    """Whether subscribers of this gateway that read are far behind in messages of QoS 0."""

    is_behind: bool


class Slow(WireMessage, frozen=True):
    """Whether gateways stop reading from publishers for now, since some gateway is behind."""

    is_slow: bool
