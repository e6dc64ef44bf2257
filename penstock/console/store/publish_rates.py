"""How fast users publish by the console: the rates of [quota], in the token buckets of gateway.access.quotas.

The console is to these rates what a gateway process is: each process has buckets of its own. Where a gateway stops to
listen to a client, the console refuses a request and says when to send it again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from gateway.access.quota_settings import QuotaSettings
from gateway.access.quotas import LEAST_PAUSE_S, Bucket
from penstock.sdk.errors import ClientError

MOST_PAYERS = 10_000


class PublishesTooFast(ClientError):
    """More was published than a quota allows. `wait_s`: when there is room again."""

    def __init__(self, setting: str, wait_s: float) -> None:
        self.wait_s = wait_s
        super().__init__(f"quota.{setting} is reached")


class Payer(NamedTuple):
    """Who pays for a message: a client (the hash of its credentials), a user, or a namespace."""

    kind: str  # client, user, namespace
    name: str | bytes


class _Rate(NamedTuple):
    """A bucket, and the setting that it stands for."""

    setting: str
    bucket: Bucket


class PublishMeter(NamedTuple):
    """What one connection of a user pays from."""

    payers: tuple[Payer, ...]
    messages: tuple[_Rate, ...]
    bytes_: tuple[_Rate, ...]

    def pay(self, messages: int, size_bytes: int, now_s: float) -> None:
        """Take from each bucket; more than it has is paid back before the next. Raises PublishesTooFast."""
        for rate in (*self.messages, *self.bytes_):
            rate.bucket.refill(now_s)
            if rate.bucket.tokens < 1:
                wait_s = (1 - rate.bucket.tokens) / rate.bucket.per_s
                raise PublishesTooFast(rate.setting, max(LEAST_PAUSE_S, wait_s))
        for rates, taken in ((self.messages, messages), (self.bytes_, size_bytes)):
            for rate in rates:
                rate.bucket.tokens -= taken


class PublishRates:
    """Owner of the buckets. One that is in debt outlives the connection of who made it."""

    def __init__(self, quota: QuotaSettings) -> None:
        self._quota = quota
        self._buckets: OrderedDict[Payer, tuple[tuple[_Rate, ...], tuple[_Rate, ...]]] = OrderedDict()

    @property
    def are_bounded(self) -> bool:
        """Whether any rate is set."""
        return any(
            self._per_s(kind, what) for kind in ("client", "user", "namespace") for what in ("messages", "bytes")
        )

    def meter(self, client: bytes, user: str, namespace: str, now_s: float) -> PublishMeter:
        """Of a connection. `user` empty: nobody is named; `namespace` empty: the default one."""
        payers = [Payer("client", client)]
        if user:
            payers.append(Payer("user", user))
        if namespace or self._quota.bound_default_namespace:
            payers.append(Payer("namespace", namespace))
        found = [self._of(payer, now_s) for payer in payers]
        messages, bytes_ = (tuple(rate for each in found for rate in each[at]) for at in (0, 1))
        return PublishMeter(tuple(payers), messages, bytes_)

    def _of(self, payer: Payer, now_s: float) -> tuple[tuple[_Rate, ...], tuple[_Rate, ...]]:
        found = self._buckets.get(payer)
        if found is None:
            found = self._buckets[payer] = (self._rates(payer, "messages", now_s), self._rates(payer, "bytes", now_s))
            if len(self._buckets) > MOST_PAYERS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(payer)
        return found

    def _rates(self, payer: Payer, what: str, now_s: float) -> tuple[_Rate, ...]:
        per_s = self._per_s(payer.kind, what)
        bucket = Bucket(per_s, self._quota.burst_ms / 1000, now_s)
        return (_Rate(f"{payer.kind}_{what}_per_s", bucket),) if per_s else ()

    def _per_s(self, kind: str, what: str) -> int:
        return int(getattr(self._quota, f"{kind}_{what}_per_s"))

    def tick(self, used: Collection[Payer], now_s: float) -> None:
        """Forget the buckets that nobody uses and that are full: new ones would be the same."""
        for payer in [each for each in self._buckets if each not in used]:
            rates = [rate.bucket for each in self._buckets[payer] for rate in each]
            for bucket in rates:
                bucket.refill(now_s)
            if all(bucket.tokens >= bucket.most for bucket in rates):
                del self._buckets[payer]
