"""URLs as people may see them: without user, password and query, any of which may be a secret."""

import re

CREDENTIALS = re.compile(r"^((?:[a-z]+:/+)?).*@", re.DOTALL)
"""Up to the last `@`, so that one with a mistake in it, such as `redis:/user:pass/word@host`, shows no more."""
QUERY = re.compile(r"\?.+$", re.DOTALL)


def without_credentials(url: str) -> str:
    """The same URL where there is nothing to hide."""
    return QUERY.sub("?***", CREDENTIALS.sub(r"\1***@", url))
