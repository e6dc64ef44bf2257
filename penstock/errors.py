"""Errors of the command, one line each, with their exit codes."""

from collections.abc import Mapping


class PenstockError(Exception):
    """Base of this package's errors: something failed."""

    exit_code = 1


class UsageError(PenstockError):
    """The command was asked for something it cannot do; asking differently helps."""

    exit_code = 2


class SettingsError(UsageError):
    """A setting that is unknown, out of range or contradicts another one."""


class ConnectionFailed(PenstockError):
    """The MQTT server cannot be reached, refused the connection, or dropped it."""


class RefusedByServer(PenstockError):
    """The MQTT server answered a publish or a subscription with a failing reason code."""


def not_installed(error: ModuleNotFoundError, extras: Mapping[str, str]) -> UsageError:
    """What a missing package means to the user. `extras`: which extra has it, by package. Raises others' errors."""
    package = (error.name or "").partition(".")[0]
    if package not in extras:
        raise error
    return UsageError(f"{error.name} is not installed; run: pip install 'penstock[{extras[package]}]'")
