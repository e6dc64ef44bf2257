"""The tier that `penstock serve` and `penstock store` start beside themselves, as a process that ends with this one."""

from __future__ import annotations

from contextlib import AsyncExitStack

from penstock.config.settings import Settings
from penstock.servers.children import Child
from penstock.servers.console_child import WRONGLY_ASKED, environment_of
from penstock.servers.logs import announce
from penstock.servers.process import OPERATOR_SOCKET, Stop

GRACE_S = 15.0


async def start_tier(settings: Settings, closing: AsyncExitStack, stop: Stop) -> None:
    """Start the tier if there is a place for it; nobody waits until it has begun."""
    if settings.tier.url:
        child = TierChild(settings)
        closing.push_async_callback(child.end, stop)
        await child.start()


class TierChild(Child):
    """The tier, started again whenever it ends, unless a setting is wrong."""

    def __init__(self, settings: Settings) -> None:
        store = f"unix://{(settings.store.data / OPERATOR_SOCKET).absolute()}"
        super().__init__("tier", ["tier", "--store", store], GRACE_S, environment=environment_of(settings))

    def heard(self, event: str, url: str) -> None:
        if event == "tier":
            self.ready.set()
            announce("tier", url)

    def is_to_start_again(self, exit_code: int | None) -> bool:
        return exit_code != WRONGLY_ASKED
