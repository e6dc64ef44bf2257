"""What can go wrong between a store and those that use it. Each message names the thing and the remedy."""


class NotifyError(Exception):
    """Base of every error of this package."""
