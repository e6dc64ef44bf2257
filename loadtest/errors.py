"""What goes wrong in a load test, for the person who runs it."""


class LoadTestError(Exception):
    """Base of them all; the text says what to do."""


class BadWorkload(LoadTestError):
    """A workload file that cannot be understood."""


class BrokerRefuses(LoadTestError):
    """The broker does not let the devices in, or closes their connections."""
