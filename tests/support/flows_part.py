"""`penstock flow run` as a subprocess."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadtest.chaos.part import Part
from penstock.sync import Client
from tests.support.store_process import StoreProcess


class FlowsPart(Part):
    """The flows of a text, on a store."""

    says = "flows"

    def __init__(
        self, store: StoreProcess, folder: Path, text: str, environment: Mapping[str, str] | None = None
    ) -> None:
        file = folder / "flows.toml"
        file.write_text(text)
        super().__init__(
            folder / "flows.log", ["flow", "run", str(file), "--store", store.url], {}, environment, admin=False
        )


def letters(client: Client) -> list[tuple[str, str]]:
    """Topics and reasons of the dead letters of flows."""
    found = list(client.read("$dead/#"))
    return [(letter.topic, " ".join(f"{name}={value}" for name, value in letter.user_properties)) for letter in found]
