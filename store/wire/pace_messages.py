"""Messages that keep publishers at QoS 0 from outrunning subscribers: gateways and store tell each other who lags."""

from store.wire.base import WireMessage


class Behind(WireMessage, frozen=True):
    """Whether subscribers of this gateway that read are far behind in messages of QoS 0."""

    is_behind: bool


class Slow(WireMessage, frozen=True):
    """Whether gateways stop reading from publishers for now, since some gateway is behind."""

    is_slow: bool
