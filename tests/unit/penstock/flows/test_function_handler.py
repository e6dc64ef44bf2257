"""Functions of flows: which can be called, and what they may return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.flows.functions import FunctionOutput
from penstock.flows.functions.frames import MOST_OUTPUTS, Output
from penstock.flows.functions.handler import BadHandler, BadOutput, loaded, outputs_of

HERE = __name__


class Callables:
    @staticmethod
    def plain(_: object) -> None: ...

    @staticmethod
    async def later(_: object) -> None: ...

    @staticmethod
    async def streamed(_: object) -> Any:
        yield 1

    @staticmethod
    def two(_: object, __: object) -> None: ...


@pytest.mark.parametrize(("name", "is_async"), [("Callables.plain", False), ("Callables.later", True), ("str", False)])
def test_handler_may_be_a_plain_or_async_callable(name: str, is_async: bool) -> None:
    module = HERE if "." in name else "builtins"
    assert loaded(module, name)[1] is is_async


@pytest.mark.parametrize(
    ("module", "name", "told"),
    [
        (
            "no_such",
            "f",
            "no_such cannot be imported: ModuleNotFoundError: No module named 'no_such'; start in the folder",
        ),
        (HERE, "nothing", f"{HERE} has no nothing; correct the name, or define it"),
        (HERE, "HERE", f"{HERE}:HERE is str, and no function; name a function"),
        (HERE, "Callables.two", "cannot be called with a message: missing a required argument: '__'; let it have one"),
        (HERE, "Callables.streamed", "is an asynchronous generator; return a list"),
    ],
)
def test_handler_that_cannot_be_called_is_refused(module: str, name: str, told: str) -> None:
    with pytest.raises(BadHandler) as error:
        loaded(module, name)
    assert told in str(error.value)


def several() -> Iterator[object]:
    yield "a", b"1"
    yield FunctionOutput("b", "2", "k", {"h": "x"}, "text/plain")


def test_handler_return_values_become_messages() -> None:
    first, second = Output("a", b"1", "", {}, ""), Output("b", b"2", "k", {"h": "x"}, "text/plain")
    assert outputs_of(None) == outputs_of([]) == []
    assert outputs_of(("a", "1")) == outputs_of([("a", b"1")]) == [first]
    assert outputs_of(several()) == outputs_of(tuple(several())) == [first, second]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (7, "it returned int; return None, (topic, payload)"),
        ("a", "it returned str; return None"),
        ({"a": b"1"}, "it returned dict; return None"),
        ([7], "it returned int"),
        (("a", 7), "its payload is int; give bytes or str"),
        (FunctionOutput("a", key=7), "its key is int; give a str"),  # type: ignore[arg-type]
        (FunctionOutput("a", headers={"a": 7}), "its headers are no dict of str"),  # type: ignore[dict-item]
        ((("a", b"") for _ in range(MOST_OUTPUTS + 1)), f"it returned more than {MOST_OUTPUTS} messages"),
    ],
)
def test_handler_return_values_that_cannot_be_published_are_refused(returned: object, told: str) -> None:
    with pytest.raises(BadOutput) as error:
        outputs_of(returned)
    assert told in str(error.value)
