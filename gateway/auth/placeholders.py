"""The placeholders of rules, `%u` and `%c`, and the names that stand in their place for one client."""

from __future__ import annotations

import re

_NO_NAME = frozenset("/+#")


def has_placeholder(text: str) -> bool:
    return "%u" in text or "%c" in text


def end_of(text: str) -> str:
    """The text after the last placeholder."""
    return text[max(text.rfind("%u"), text.rfind("%c")) + 2 :]


def fill(text: str, username: str, client_id: str) -> str:
    """Fill in the placeholders in one pass, since a name may itself contain `%u`."""
    if "%c" not in text:
        return text.replace("%u", username)
    if "%u" not in text:
        return text.replace("%c", client_id)
    return re.sub("%[cu]", lambda found: client_id if found[0] == "%c" else username, text)


class FilledLevels:
    """Levels of rules with one client's names in them, filled in once for a decision."""

    def __init__(self, username: str, client_id: str) -> None:
        self._username = username
        self._client_id = client_id
        self._is_bad_user = _is_bad(username)
        self._is_bad_client_id = _is_bad(client_id)
        self.are_good = not (self._is_bad_user or self._is_bad_client_id)
        self._texts: dict[str, str | None] = {}

    def text(self, level: str) -> str | None:
        """A level with its placeholders filled in; None: a name is empty, has a slash, or would be a wildcard."""
        if level in self._texts:
            return self._texts[level]
        is_bad = (self._is_bad_user and "%u" in level) or (self._is_bad_client_id and "%c" in level)
        text = self._texts[level] = None if is_bad else fill(level, self._username, self._client_id)
        return text


def _is_bad(name: str) -> bool:
    return not name or not _NO_NAME.isdisjoint(name)
