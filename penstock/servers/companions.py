"""The console, the tier and the flows, which a server starts beside itself, as processes that end with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from contextlib import AsyncExitStack
from pathlib import Path

from gateway.auth.settings import is_auth_configured
from notify.links.address import is_loopback
from notify.local.hub import Hub
from notify.local.tier import TIER_READER
from penstock.config.settings import Settings
from penstock.config.settings_tree import SETTINGS, value_of
from penstock.config.tier_settings import TierSettings
from penstock.errors import UsageError
from penstock.servers.children import Child
from penstock.servers.logs import announce
from penstock.servers.process import CONSOLE_SOCKET, OPERATOR_SOCKET, Stop
from store.errors import StoreError
from store.wire.log_messages import HoldLog

log = logging.getLogger("penstock.tier")

CONSOLE_GRACE_S, TIER_GRACE_S, FLOWS_GRACE_S = 5.0, 15.0, 15.0
RATES = {path for path in SETTINGS if path.startswith("quota.") and path.endswith("_per_s")} | {
    "quota.burst_ms",
    "quota.bound_default_namespace",
}
"""How fast users may publish, which the console sees to for those that come by HTTP."""
NAMES = {"auth.jwt_keys_url_prefix", "auth.jwt_user_claim"}
"""How the store names users of a provider."""
WRONGLY_ASKED = 2
"""The exit code of a process that a new start does not help: its port is in use, or a setting is wrong."""


def check_console_exposed(settings: Settings) -> None:
    """Refuse a console beyond loopback where no user has to log in. Raises UsageError."""
    console = settings.console
    host = console.listen.rpartition(":")[0].strip("[]")
    asks = is_auth_configured(settings.auth) and not settings.auth.allow_anonymous
    if console.enabled and not (is_loopback(host) or asks or console.allow_open_beyond_loopback):
        raise UsageError(
            f"console.listen {console.listen}: reachable by other machines while no user needs a password; listen on "
            "127.0.0.1, set auth.password_file (docs/security.md says what else), or "
            "console.allow_open_beyond_loopback = true"
        )


async def start_console(settings: Settings, closing: AsyncExitStack, stop: Stop) -> None:
    """Start the console, unless it is switched off; nobody waits until it listens."""
    if settings.console.enabled:
        environment = environment_of(settings, ("console.", "log_"), RATES | NAMES)
        await _start(Companion("console", settings, CONSOLE_SOCKET, CONSOLE_GRACE_S, environment), closing, stop)


async def start_tier(settings: Settings, closing: AsyncExitStack, stop: Stop) -> None:
    """Start the tier if there is a place for it; nobody waits until it has begun."""
    if settings.tier.url:
        environment = environment_of(settings, ("tier.", "log_"))
        await _start(Companion("tier", settings, OPERATOR_SOCKET, TIER_GRACE_S, environment), closing, stop)


async def start_flows(settings: Settings, closing: AsyncExitStack, stop: Stop) -> None:
    """Start the flows if there are some; nobody waits until they have begun."""
    if settings.flows.file is not None:
        environment = environment_of(settings, ("flows.", "log_"))
        command = ["flow", "run", str(settings.flows.file.absolute())]
        companion = Companion("flows", settings, CONSOLE_SOCKET, FLOWS_GRACE_S, environment, command)
        await _start(companion, closing, stop)


class Companion(Child):
    """A process that the store does without, called as its command: it is started again whenever it ends, unless a
    setting is wrong.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        socket: str,
        grace_s: float,
        environment: Mapping[str, str],
        command: Sequence[str] = (),
    ) -> None:
        """`socket`: by which it comes to the store, in the data folder. `command`: if it is not called as its name."""
        store = f"unix://{(settings.store.data / socket).absolute()}"
        super().__init__(name, [*(command or [name]), "--store", store], grace_s, environment=environment)

    def heard(self, event: str, url: str) -> None:
        if event == self.name:
            self.ready.set()
            announce(self.name, url)

    def is_to_start_again(self, exit_code: int | None) -> bool:
        return exit_code != WRONGLY_ASKED


async def _start(child: Companion, closing: AsyncExitStack, stop: Stop) -> None:
    closing.push_async_callback(child.end, stop)
    await child.start()


def environment_of(settings: Settings, sections: tuple[str, ...], paths: Set[str] = frozenset()) -> dict[str, str]:
    """Settings of some sections, and others by their paths, as environment variables; none of them is a secret."""
    found: dict[str, str] = {}
    for path, setting in SETTINGS.items():
        value = value_of(settings, path)
        if (path.startswith(sections) or path in paths) and value is not None:
            found[setting.environment_names[-1]] = _text(value)
    return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return str(value.absolute())
    return ",".join(value) if isinstance(value, tuple) else str(value)


def hold_for_tier(hub: Hub, tier: TierSettings) -> None:
    """Keep the log for a tier from the store's first start on: the process comes some seconds later."""
    if tier.url and hub.messages.log_readers.get(TIER_READER) is None:
        try:
            hub.readers.hold(HoldLog(TIER_READER, None, tier.most_behind_bytes, tier.when_behind))
        except StoreError as error:
            log.warning("retention does not wait for the tier before it is connected: %s", error)
