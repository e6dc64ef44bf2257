"""Dead letters of a group: those that are open, one of them, and publishing them again or dropping them. For admins."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.console.access.admin import by, operator_for
from penstock.console.errors import Problem
from penstock.console.pages.message import payload_values
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.pages.topic import row
from penstock.console.store.dead_letters import (
    HowToSettle,
    LetterPlace,
    OpenLetter,
    SettledLetters,
    StepEnd,
    counted,
    open_letter,
    open_letters,
    settle_all,
    settle_some,
)
from penstock.console.store.operator import OperatorConnection
from penstock.console.views.dead_letters import DeadLetterShown, letter_shown
from penstock.sdk.message import Message

MOST_NAME = 255
ROWS = 50
"""Of a page, so that the form with all of them chosen has fewer than MOST_FIELDS fields."""
LETTER = "letter-"
"""Begins the name of a letter's field; its queue_offset follows, and its value is the log_offset."""
MOST_OFFSET = (1 << 62) - 1


@page("/letters")
async def letters_page(visit: PageVisit) -> Response:
    """`name` of the group; `after`: a queue_offset."""
    operator = await operator_for(visit.console, visit.caller)
    name = _name_of(visit.asked("name"))
    values = await _list(visit, operator, name, visit.number("after", 0, most=MOST_OFFSET))
    return visit.show("letters.html", **values)


async def _list(visit: PageVisit, operator: OperatorConnection, name: str, after: int) -> dict[str, Any]:
    """The values of letters_list.html; pages in which all is settled are left out."""
    group = visit.caller.connection.names.group(name)
    found = await open_letters(operator, group, after, ROWS)
    rows = [_row(visit, each) for each in found.letters]
    return {"name": name, "rows": rows, "at": after, "after": found.next, "letter_field": LETTER}


def _row(visit: PageVisit, letter: OpenLetter) -> tuple[DeadLetterShown, str]:
    """A letter, and one line of its payload."""
    place = visit.caller.connection.place
    found = letter_shown(letter, place)
    if letter.record is None:
        return found, ""
    return found, row(Message(letter.record, letter.place.queue_offset, place))[1]


@page("/letter")
async def letter_page(visit: PageVisit) -> Response:
    """`name` of the group, `at`: queue_offset; `as`: the form of the payload."""
    operator = await operator_for(visit.console, visit.caller)
    name, connection = _name_of(visit.asked("name")), visit.caller.connection
    found = await open_letter(operator, connection.names.group(name), visit.number("at", 0, most=MOST_OFFSET))
    shown = letter_shown(found, connection.place)
    values: dict[str, Any] = {"message": None}
    if found.record is not None:
        message = Message(found.record, found.place.queue_offset, connection.place)
        values = {"message": message, **payload_values(message, visit.asked("as", most=8))}
        values["address"] = ("/letter", {"name": name, "at": found.place.queue_offset})
    template = "message_part.html" if visit.is_part and found.record is not None else "letter.html"
    return visit.show(template, name=name, letter=shown, letter_field=LETTER, **values)


@page("/letters/settle", ["POST"])
async def settle(visit: PageVisit) -> Response:
    """Publish the chosen letters again, or drop them; the answer says how many, and has the list anew."""
    operator, form = await operator_for(visit.console, visit.caller), await visit.form()
    how, settled = _how(visit, form), SettledLetters()
    places = [
        LetterPlace(_number(name.removeprefix(LETTER)), _number(value))
        for name, value in form.items()
        if name.startswith(LETTER)
    ]
    if not places:
        raise Problem(400, "bad-parameter", "no dead letter is chosen", "tick some of them, or settle all")
    with counted(settled):
        await settle_some(operator, how, places, settled)
    values: dict[str, Any] = {"name": form["name"]}
    if "one" not in form:  # the page of one letter has no list
        values = await _list(visit, operator, form["name"], _number(form.get("at", "0")))
    return visit.show("letters_settled.html", settled=settled, again=how.again, goes_on=None, **values)


@page("/letters/settle-all", ["POST"])
async def settle_everything(visit: PageVisit) -> Response:
    """One step; the answer has the form of the next one, which a script sends."""
    operator, form = await operator_for(visit.console, visit.caller), await visit.form()
    how = _how(visit, form)
    settled = SettledLetters(_number(form.get("done", "0")), _number(form.get("gone", "0")))
    begin = StepEnd(_number(form["next"]), _number(form.get("until", ""))) if "next" in form else None
    with counted(settled):
        goes_on = await settle_all(operator, how, begin, settled)
    values = await _list(visit, operator, form["name"], 0)
    left_before = _number(form.get("left", "0"))
    return visit.show(
        "letters_settled.html", settled=settled, left_before=left_before, again=how.again, goes_on=goes_on, **values
    )


def _how(visit: PageVisit, form: dict[str, str]) -> HowToSettle:
    """Raises Problem."""
    name, what = _name_of(form.get("name", "")), form.get("what", "")
    if what not in ("again", "drop"):
        raise Problem(400, "bad-parameter", "neither to publish again nor to drop", "use the page's buttons")
    form["name"] = name
    return HowToSettle(visit.caller.connection.names.group(name), what == "again", by(visit.request, visit.caller))


def _name_of(name: str) -> str:
    """Raises Problem."""
    if not 0 < len(name) <= MOST_NAME:
        raise Problem(404, "no-such-group", "no group has this name", "choose one on the page Groups")
    return name


def _number(text: str) -> int:
    """Raises Problem."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MOST_OFFSET):
        raise Problem(400, "bad-parameter", "no number of a dead letter", "choose one on its page")
    return int(text)
