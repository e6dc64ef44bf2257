"""The topics that a rule of the permissions is about: its topic filters, and what a client asks for."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.auth.placeholders import FilledLevels, end_of, has_placeholder

Level = str | None
"""One level of a topic filter: its text, or None for `+`. A `#` is left out, and noted as `is_open`."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A rule's topic filter, with its placeholders.

    A decision looks at thousands of them, and most are about other topics: what their levels say of that is looked at
    before a filter is made.
    """

    levels: tuple[str, ...]
    is_open: bool  # it ends with #
    texts: tuple[tuple[int, str], ...]
    """(place, level) of those that are the same for every client. Rules that begin alike often end otherwise: the last
    one comes first."""
    templates: tuple[tuple[int, str, str], ...]
    """(place, level, what is after its last placeholder) of those with placeholders."""
    fixed: Filter | None = None  # the filter for every client, if it has no placeholders

    @classmethod
    def parse(cls, topic_filter: str) -> Pattern:
        levels = topic_filter.split("/")
        is_open = levels[-1] == "#"
        own = tuple(levels[:-1] if is_open else levels)
        texts, templates = [], []
        for at in range(len(own) - 1, -1, -1):
            if has_placeholder(level := own[at]):
                templates.append((at, level, end_of(level)))
            elif level != "+":
                texts.append((at, level))
        fixed = None if templates else Filter.parse(topic_filter)
        return cls(own, is_open, tuple(texts), tuple(templates), fixed)

    def cannot_cover(self, levels: tuple[Level, ...], names: FilledLevels) -> bool:
        """Whether a level shows that no filter of these levels is covered."""
        number = len(levels)
        for at, text in self.texts:
            if at >= number or levels[at] != text:
                return True
        for at, level, end in self.templates:
            theirs = levels[at] if at < number else None
            if theirs is None or not theirs.endswith(end) or theirs != names.text(level):
                return True
        return False

    def cannot_meet(self, other: Filter, names: FilledLevels) -> bool:
        """Whether a level shows that no topic matches both; a name that is none stands for any level."""
        levels, number = other.levels, len(other.levels)
        for at, text in self.texts:
            if at >= number:
                if not other.is_open:
                    return True
            elif levels[at] != text and levels[at] is not None:
                return True
        for at, level, end in self.templates:
            theirs = levels[at] if at < number else None
            if theirs is None:
                continue
            if (names.are_good and not theirs.endswith(end)) or names.text(level) not in (None, theirs):
                return True
        return False

    def filled(self, names: FilledLevels, denies: bool) -> Filter | None:
        """The filter for one client. None if it cannot apply: a name is empty, would be more than one level, or makes a
        level that begins with `$`, which is reserved for the server.

        To be safe, a rule that denies takes any level in place of a name that is empty or more than one level.
        """
        if self.fixed is not None:
            return self.fixed
        filled: list[Level] = [None if level == "+" else level for level in self.levels]
        for at, level, _ in self.templates:
            text = names.text(level)
            if not denies and (text is None or (text.startswith("$") and not level.startswith("$"))):
                return None
            filled[at] = text
        return Filter(tuple(filled), self.is_open)


@dataclass(frozen=True, slots=True)
class Filter:
    """A topic filter as levels; a topic name is a filter without wildcards."""

    levels: tuple[Level, ...]
    is_open: bool

    @classmethod
    def parse(cls, topic_filter: str) -> Filter:
        levels: list[Level] = [None if level == "+" else level for level in topic_filter.split("/")]
        is_open = levels[-1] == "#"
        return cls(tuple(levels[:-1] if is_open else levels), is_open)

    @property
    def text(self) -> str:
        """The filter as it is written in the rules."""
        levels = ["+" if level is None else level for level in self.levels]
        return "/".join([*levels, "#"] if self.is_open else levels)

    def covers(self, other: Filter) -> bool:
        """Whether this filter matches every topic that the other matches."""
        if self._begins_otherwise(other) or _hides(self, other):
            return False
        if len(other.levels) < len(self.levels) or (not self.is_open and len(other.levels) != len(self.levels)):
            return False
        if other.is_open and not self.is_open:
            return False
        return all(mine is None or mine == theirs for mine, theirs in zip(self.levels, other.levels, strict=False))

    def _begins_otherwise(self, other: Filter) -> bool:
        """Whether the first level already shows that this does not cover the other: true of most rules."""
        return bool(self.levels) and self.levels[0] is not None and other.levels[:1] != self.levels[:1]

    def meets(self, other: Filter, is_inside: bool = False) -> bool:
        """Whether any topic matches both. `is_inside`: the other is from after `$dead/GROUP/`, where a wildcard also
        matches a level that starts with $.
        """
        mine, theirs = self.levels[:1], other.levels[:1]
        if mine != theirs and mine and theirs and None not in (mine[0], theirs[0]):
            return False
        if _hides(self, other) or (not is_inside and _hides(other, self)):
            return False
        shorter, longer = sorted((self, other), key=lambda each: len(each.levels))
        if len(shorter.levels) != len(longer.levels) and not shorter.is_open:
            return False
        pairs = zip(self.levels, other.levels, strict=False)
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)


def _hides(wide: Filter, other: Filter) -> bool:
    """A wildcard at the beginning does not match a topic that starts with $ [MQTT-4.7.2-1]."""
    first = other.levels[0] if other.levels else None
    return first is not None and first.startswith("$") and (not wide.levels or wide.levels[0] is None)


WRAPPERS = ("$dead", "$delayed", "$share")
"""First of the two levels before a topic or topic filter: `$dead/GROUP/TOPIC`, and so on."""
MOST_WRAPPERS = 4
EVERYTHING = Filter((), is_open=True)


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic (filter) that a client asks for, with the topics inside it."""

    whole: Filter
    inner: Filter | None = None
    """The filter after `$dead/GROUP/`, if there is one."""
    hidden: tuple[Filter, ...] = ()
    """All filters that may be after it: `$dead/GROUP/+/+/x` matches a topic `$dead/OTHER/x` as well."""

    @classmethod
    def parse(cls, topic: str) -> WantedTopic:
        whole = inner = Filter.parse(topic)
        hidden: list[Filter] = []
        is_plain = True
        while inner.levels and (inner.levels[0] in WRAPPERS or (hidden and inner.levels[0] is None)):
            is_plain = is_plain and inner.levels[0] is not None
            if len(inner.levels) <= 2 and not inner.is_open and (len(inner.levels) < 2 or not is_plain):
                break
            behind = Filter(inner.levels[2:], inner.is_open)
            # A topic that would be too long loses the part after `$dead/GROUP`, so that part may be anything.
            inner = behind if behind.levels and len(hidden) < MOST_WRAPPERS else EVERYTHING
            hidden.append(inner)
        begins_plainly = bool(hidden) and is_plain and bool(inner.levels) and inner.levels[0] is not None
        return cls(whole, inner if begins_plainly else None, tuple(hidden))

    def is_covered_by(self, pattern: Pattern, names: FilledLevels) -> bool:
        """Whether a rule that allows this pattern allows the topic."""
        inner = self.inner
        if pattern.cannot_cover(self.whole.levels, names) and (
            inner is None or pattern.cannot_cover(inner.levels, names)
        ):
            return False
        mine = pattern.filled(names, denies=False)
        return mine is not None and (mine.covers(self.whole) or (inner is not None and mine.covers(inner)))

    def is_met_by(self, pattern: Pattern, names: FilledLevels) -> bool:
        """Whether a rule that denies this pattern denies the topic."""
        if pattern.cannot_meet(self.whole, names) and all(pattern.cannot_meet(each, names) for each in self.hidden):
            return False
        mine = pattern.filled(names, denies=True)
        return mine is not None and (
            mine.meets(self.whole) or any(mine.meets(each, is_inside=True) for each in self.hidden)
        )


def unwrapped(topic: str) -> str:
    """The topic after `$dead/GROUP/` and the like; `#` if it is not there."""
    for _ in range(MOST_WRAPPERS):
        first, *others = topic.split("/", 2)
        if first not in WRAPPERS or not others:
            return topic
        topic = others[1] if len(others) == 2 else "#"
    return "#" if topic.startswith(WRAPPERS) else topic
