"""For whom a peer may ask: the address by which the store counts and bans it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from notify.links.tls import CertifiedRoles
from notify.requests.users import Origin, User
from notify.server.arrival import Arrival
from notify.server.incoming import HeldRequests
from store.wire.messages import Hello, Refused, RefusedReason, Role

OWN, BROWSER = "192.0.2.1:5000", "203.0.113.7"


class Noting:
    """A UserJudge that refuses everybody, and remembers where they came from."""

    origin = Origin()

    def admit(self, hello: Hello, origin: Origin, answer: Callable[[User | Refused | None], None]) -> None:
        self.origin = origin
        answer(Refused(RefusedReason.USER, "nobody"))

    def banned(self, origin: Origin, account: str) -> str:
        return f"{origin.address} {account}"


def origin_of(hello: Hello, tokens: dict[str, str | None], roles: tuple[str, ...] = (), name: str = "") -> Origin:
    judge = Noting()
    arrival = Arrival(OWN, (name,) if name else (), CertifiedRoles(roles), judge, tokens)
    held: HeldRequests = None  # type: ignore[assignment]  # of gateways alone
    arrival.meet(hello, lambda *_: pytest.fail("let in"), lambda _: None, held)
    assert arrival.banned(None) == f"{judge.origin.address} {hello.user}"
    return judge.origin


def hello(token: str = "", operator_token: str = "", on_behalf_of: str = BROWSER) -> Hello:
    return Hello([1], Role.CLIENT, "c", token, "bob", on_behalf_of=on_behalf_of, operator_token=operator_token)


@pytest.mark.parametrize(
    ("said", "tokens", "is_believed"),
    [
        (hello("c", "o"), {"client": "c", "operator": "o"}, True),
        (hello("c", "x"), {"client": "c", "operator": "o"}, False),
        (hello("c"), {"client": "c", "operator": "o", "gateway": "g"}, False),
        (hello("c", "o"), {"client": "c"}, False),
        (hello(), {"client": None, "operator": None}, True),  # console.sock
        (hello(), {"client": None, "gateway": None}, True),  # who may be a gateway may do everything
        (hello("t"), {"client": "t", "gateway": "t"}, True),
        (hello("c", "g"), {"client": "c", "gateway": "g"}, True),
    ],
)
def test_origin_stated_by_an_operator_or_a_gateway_is_believed(
    said: Hello, tokens: dict[str, str | None], is_believed: bool
) -> None:
    expected = Origin(BROWSER) if is_believed else Origin(OWN, (), BROWSER)
    assert origin_of(said, tokens) == expected


def test_a_certificate_that_the_role_needs_has_to_be_shown() -> None:
    tokens: dict[str, str | None] = {"client": "c", "operator": "o"}
    for name, address in (("console", BROWSER), ("laptop", OWN)):
        assert origin_of(hello("c", "o"), tokens, ("operator=console",), name).address == address


def test_a_client_that_asks_for_itself() -> None:
    assert origin_of(hello(on_behalf_of=""), {"client": None}) == Origin(OWN)
