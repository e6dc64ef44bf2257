"""URLs for people: without user, password and query, any of which may be a secret."""

import re

CREDENTIALS = re.compile(r"^((?:[a-z]+:/+)?).*@", re.DOTALL)
"""Up to the last `@`, so that a URL with a mistake, such as `redis:/user:pass/word@host`, shows no more."""
QUERY = re.compile(r"\?.+$", re.DOTALL)


def without_credentials(url: str) -> str:
    """The URL without secrets; unchanged if it has none."""
    return QUERY.sub("?***", CREDENTIALS.sub(r"\1***@", url))
