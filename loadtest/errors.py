"""Errors of a load test, for the person that runs it."""


class LoadTestError(Exception):
    """Base of all errors of load tests; the message says what to do."""


class BadWorkload(LoadTestError):
    """A workload file is not valid."""


class BrokerRefuses(LoadTestError):
    """The broker refuses the devices, or closes their connections."""
