"""The tier as a process: it follows the log of a store, and ends with `penstock serve` if that started it."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial

from notify.links.address import StoreAddress
from notify.local.tier import TIER_READER
from penstock.config.credentials import tls_of_gateway, token_of_command
from penstock.config.settings import Settings
from penstock.errors import UsageError
from penstock.servers.logs import announce
from penstock.servers.process import Stop, run
from penstock.store_client import StoreClient
from penstock.tier.dispatcher import CommitRules, TierDispatcher
from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder, options_of
from penstock.tier.reading import TableReader
from penstock.tier.store_log import IDLE_S, HeldLog, StoreLog
from penstock.tier.workers import TierWorkers
from store.version import VERSION
from store.wire.messages import Role

log = logging.getLogger("penstock.tier")

NICENESS = 10
GRACE_S = 10.0


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    if not settings.tier.url:
        raise UsageError("no place for the history; set tier.url, or give --url s3://BUCKET/PATH or a folder")
    if settings.gateway.store is None:
        raise UsageError("no store to connect to; give its address with --store tcp://HOST:PORT")
    address = StoreAddress.parse(settings.gateway.store)
    tls = tls_of_gateway(address, settings.gateway)
    role, token = token_of_command(settings.wire, settings.gateway)
    role = Role.OPERATOR if address.path else role  # operator.sock wants no token
    tier = settings.tier
    held = HeldLog(TIER_READER, tier.most_behind_bytes, tier.when_behind)
    objects = ObjectFolder(tier.url, options_of(os.environ))
    rules = CommitRules(tier.commit_s, tier.commit_bytes, tier.vacuum_h)
    dispatcher = TierDispatcher(partial(StoreLog, address, token, tls, role, held), objects, rules)
    workers: TierWorkers | None = None
    if role is Role.OPERATOR:
        reader = TableReader(TableHistory(objects, tier.cache_bytes))
        workers = TierWorkers(reader, partial(StoreClient, address, token, tls, role, IDLE_S), objects.delta_url)
    return run(settings, lambda: _serve(dispatcher, workers, tier.url, address.url))


async def _serve(dispatcher: TierDispatcher, workers: TierWorkers | None, url: str, store: str) -> None:
    stop = Stop()
    os.nice(NICENESS)
    if workers is not None:
        workers.start()
    else:
        log.warning("it writes the history, and serves none: that takes the store's wire.operator_token")
    log.info("penstock %s tier starting, store=%s, url=%s", VERSION, store, url)
    writing = asyncio.create_task(asyncio.to_thread(dispatcher.run))
    announce("tier", url)
    while not writing.done() and not await stop.or_tick():
        pass
    dispatcher.stop()
    if workers is not None:
        workers.stop()
    try:
        await asyncio.wait_for(asyncio.shield(writing), GRACE_S)
    except TimeoutError:
        log.warning("storage does not answer; ending without it: what is not committed is written by the next start")
        os._exit(0)
    log.info("stopped")
