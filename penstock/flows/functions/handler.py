"""A function by its name: imported, and seen to be one that can be called with a message."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from penstock.flows.functions import FunctionMessage, FunctionOutput
from penstock.flows.functions.frames import MOST_OUTPUTS, Output

SAY_WHAT: Final = "return None, (topic, payload), a FunctionOutput, or a list of these"


class BadHandler(Exception):
    """There is no such function, or none that can be called; what to do stands after a semicolon."""


class BadOutput(Exception):
    """What a function returned is nothing that could be published."""


def loaded(module: str, name: str) -> tuple[Callable[[FunctionMessage], Any], bool]:
    """The function, and whether it is asynchronous. Raises BadHandler."""
    try:
        found = import_module(module)
    except Exception as error:
        remedy = "mend it"
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            remedy = "start in the folder that has it, install it, or set PYTHONPATH"
        raise BadHandler(f"{module} cannot be imported: {type(error).__name__}: {error}; {remedy}") from error
    try:
        handler = attrgetter(name)(found)
    except AttributeError:
        raise BadHandler(f"{module} has no {name}; correct the name, or define it") from None
    if not callable(handler):
        raise BadHandler(f"{module}:{name} is {type(handler).__name__}, and no function; name a function") from None
    if inspect.isasyncgenfunction(handler):
        raise BadHandler(f"{module}:{name} is an asynchronous generator; return a list")
    try:
        inspect.signature(handler).bind(object())
    except TypeError as error:
        raise BadHandler(
            f"{module}:{name} cannot be called with a message: {error}; let it have one argument"
        ) from None
    except ValueError:
        pass  # it is compiled, and does not say
    return handler, inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def outputs_of(returned: object) -> list[Output]:
    """Raises BadOutput, and what a generator raises."""
    if returned is None:
        return []
    if isinstance(returned, FunctionOutput) or _is_pair(returned):
        return [_output(returned)]
    if isinstance(returned, str | bytes | dict) or not isinstance(returned, Iterable):
        raise BadOutput(f"it returned {type(returned).__name__}; {SAY_WHAT}")
    found = [_output(each) for each in islice(returned, MOST_OUTPUTS + 1)]
    if len(found) > MOST_OUTPUTS:
        raise BadOutput(f"it returned more than {MOST_OUTPUTS} messages; return fewer for each one")
    return found


def _is_pair(returned: object) -> bool:
    return isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], str)


def _output(said: object) -> Output:
    if isinstance(said, tuple) and _is_pair(said):
        said = FunctionOutput(*said)
    if not isinstance(said, FunctionOutput):
        raise BadOutput(f"it returned {type(said).__name__}; {SAY_WHAT}")
    payload = said.payload.encode() if isinstance(said.payload, str) else said.payload
    texts: dict[str, object] = {"topic": said.topic, "key": said.key, "content_type": said.content_type}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadOutput(f"its {name} is {type(text).__name__}; give a str")
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise BadOutput(f"its payload is {type(payload).__name__}; give bytes or str")
    headers: Any = said.headers
    if not isinstance(headers, dict) or not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise BadOutput("its headers are no dict of str; give one")
    return Output(said.topic, bytes(payload), said.key, headers, said.content_type)
