"""Ending a piece of work at any of its steps, as a SIGKILL would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CALLS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("pwrite", "truncate", "ftruncate", "fdatasync", "link")),
    *((Path, name) for name in ("rename", "unlink")),
)


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int, *more: tuple[Any, str]) -> None:
    """Have the call of the system that changes files next but `step` be the last. `more`: calls that count as well."""
    left = [step]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return call(*given, **named)

        return counting

    for owner, name in (*CALLS, *more):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
