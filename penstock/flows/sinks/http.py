"""Events by HTTP: CloudEvents (HTTP protocol binding 1.0.2) or payloads as they are, signed if that is wanted.

The address that is connected to is judged, and not the name: a name may mean another address the next time. Requests
are signed as Standard Webhooks (https://www.standardwebhooks.com) has it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import socket
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import aiohttp

from penstock.flows.definition import Flow, Network
from penstock.flows.errors import FlowError, SinkAway, SinkFailed, SinkRefused
from penstock.flows.events import EventWriter, FlowEvent, Written
from penstock.flows.trust import trusted
from penstock.sdk.subscription import Subscription

MOST_ANSWER_BYTES: Final = 64 << 10  # of which more is not read
MOST_TOLD: Final = 200  # characters of an answer in a reason
MOST_REDIRECTS: Final = 3
MOST_WAIT_S: Final = 3_600.0  # that Retry-After may ask for
SAME_AGAIN: Final = (307, 308)
AWAY: Final = frozenset((401, 403, 404, 405, 407, 408, 410, 425, 429, 502, 503, 504))
"""Answers that say something of the place and not of the message."""
SECRET_PREFIX: Final = "whsec_"
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
REFUSED: Final[tuple[Network, ...]] = tuple(
    map(
        ipaddress.ip_network,
        (
            "169.254.0.0/16",
            "fe80::/10",
            "fd00:ec2::254/128",
            "100.100.100.200/32",
            "192.0.0.192/32",
            "168.63.129.16/32",
        ),
    )
)
"""Link-local addresses, and others at which clouds answer with the credentials of a machine."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class AddressRefused(OSError):
    """A name means an address that a flow does not connect to."""


class HttpSink:
    """POSTs events to one URL."""

    def __init__(self, flow: Flow, writer: EventWriter) -> None:
        """Raises FlowError."""
        said = flow.said
        self._flow, self._writer = flow, writer
        self._url = said.to
        self.most = said.batch if said.format == "cloudevents-batch" else 1
        if not urlsplit(self._url).hostname:
            raise FlowError(flow.name, "to", f"{self._url!r} names no host", "say https://HOST/PATH")
        for header in (*flow.headers, *flow.mapped_headers):
            if not _TOKEN.fullmatch(header):
                raise FlowError(
                    flow.name, "headers", f"{header!r} is no name of an HTTP header", "use letters, digits and -"
                )
        self._key = _signing_key(flow)
        self._tls = trusted(flow)
        self._session: aiohttp.ClientSession | None = None

    async def open(self, _: Subscription) -> None:
        connector = aiohttp.TCPConnector(
            limit=self._flow.said.concurrency, ssl=self._tls, socket_factory=self._socket, ttl_dns_cache=10
        )
        timeout = aiohttp.ClientTimeout(total=self._flow.said.timeout_s)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), headers=self._flow.headers
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _socket(self, address: Any) -> socket.socket:
        """For one address that the host's name means. Raises AddressRefused."""
        family, kind, protocol, _, place = address
        judge(place[0], self._flow.allowed)
        found = socket.socket(family, kind, protocol)
        found.setblocking(False)
        return found

    async def send(self, events: Sequence[FlowEvent]) -> None:
        written = self._writer.http(events)
        name = events[0].id if len(events) == 1 else f"{events[0].id}-{len(events)}"
        url = self._url
        for _ in range(MOST_REDIRECTS + 1):
            following = await self._post(url, written, name)
            if following is None:
                return
            url = following
        raise SinkAway(f"{self._url} redirects more than {MOST_REDIRECTS} times")

    async def _post(self, url: str, written: Written, name: str) -> str | None:
        """Where it is to go instead; None: it is there."""
        assert self._session is not None
        headers = written.headers | self._signature(name, written.body)
        try:
            async with self._session.post(url, data=written.body, headers=headers, allow_redirects=False) as answer:
                return self._judged(url, answer, await _body(answer))
        except TimeoutError:
            raise SinkAway(f"{self._url} has not answered for {self._flow.said.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SinkAway(f"{self._url}: {_why(error)}") from None
        except ValueError as error:  # a header that a mapping made
            raise SinkRefused(f"it cannot be sent: {error}") from None

    def _judged(self, url: str, answer: aiohttp.ClientResponse, body: bytes) -> str | None:
        status = answer.status
        if 200 <= status < 300:
            return None
        after_s = _retry_after_s(answer.headers.get("Retry-After", ""))
        text = " ".join(body[: 4 * MOST_TOLD].decode(errors="replace").split())[:MOST_TOLD]
        reason = f"{self._url} answered {status} {answer.reason or ''}".rstrip() + (f": {text}" if text else "")
        if 300 <= status < 400:
            to = urljoin(url, answer.headers.get("Location", ""))
            if status in SAME_AGAIN and _origin(to) == _origin(url):
                return to
            raise SinkAway(
                f"{reason}: it redirects to {to[:MOST_TOLD]}; a flow follows only 307 and 308 to the same host"
            )
        if status in AWAY:
            raise SinkAway(reason, after_s)
        if status >= 500:
            raise SinkFailed(reason, after_s)
        raise SinkRefused(reason)

    def _signature(self, name: str, body: bytes) -> dict[str, str]:
        now = str(int(time.time()))
        headers = {"webhook-id": name, "webhook-timestamp": now}
        if self._key:
            signed = hmac.digest(self._key, b".".join((name.encode(), now.encode(), body)), hashlib.sha256)
            headers["webhook-signature"] = "v1," + base64.b64encode(signed).decode()
        return headers


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The beginning of an answer's body. Raises ClientError if it ends too early."""
    found = bytearray()
    async for piece in answer.content.iter_chunked(MOST_ANSWER_BYTES):
        found += piece
        if len(found) > MOST_ANSWER_BYTES:
            answer.close()  # the connection is of no more use
            break
    return bytes(found)


def judge(host: str, allowed: Sequence[Network]) -> None:
    """Raises AddressRefused for a link-local address or one of a metadata service, in whatever form it comes."""
    address = ipaddress.ip_address(host.partition("%")[0])
    forms = [address]
    if isinstance(address, ipaddress.IPv6Address):
        forms += [each for each in (address.ipv4_mapped, address.sixtofour) if each is not None]
        if address in NAT64:
            forms.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if any(form in network for form in forms for network in allowed):
        return
    if any(form in network for form in forms for network in REFUSED):
        raise AddressRefused(f"{host} is link-local or a metadata service; say allow_addresses if that is meant")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    try:
        return parts.scheme, parts.hostname, parts.port
    except ValueError:  # no number
        return "", None, None


def _why(error: Exception) -> str:
    cause: BaseException = error
    for _ in range(4):
        inner = cause.__cause__ or cause.__context__
        if isinstance(cause, AddressRefused) or inner is None:
            break
        cause = inner
    found = cause if isinstance(cause, AddressRefused) else error
    return str(found) or type(found).__name__


def _retry_after_s(text: str) -> float | None:
    """Seconds that a Retry-After asks for (RFC 9110, section 10.2.3); None: it says nothing."""
    if text.isdecimal() and len(text) < 10:
        return min(float(text), MOST_WAIT_S)
    try:
        wait_s = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait_s, 0.0), MOST_WAIT_S)


def _signing_key(flow: Flow) -> bytes:
    """Raises FlowError."""
    text = flow.signing_key
    if not text.startswith(SECRET_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        raise FlowError(
            flow.name, "sign", "behind whsec_ there is no base64", "make it with: openssl rand -base64 32"
        ) from None
