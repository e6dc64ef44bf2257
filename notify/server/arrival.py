"""A connection before its peer is let in: what is known of it, and who says whether it may come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from notify.links.tls import CertifiedRoles
from notify.requests.users import Origin, User, UserJudge
from notify.server.incoming import HeldRequests
from store.wire.handshake import NO_TOKENS, same_token
from store.wire.messages import Hello, Refused, RefusedReason, Role, Welcome

Entry = Welcome | Refused
LetIn = Callable[[Hello, User | None], Entry]


@dataclass(slots=True)
class Arrival:
    """`address` is where it comes from, `names` are those of its certificate; `judge` None: nobody judges clients.
    `tokens`: by role, what a peer has to show here.
    """

    address: str = ""
    names: tuple[str, ...] = ()
    roles: CertifiedRoles = CertifiedRoles(())  # noqa: RUF009 - it has no state that changes
    judge: UserJudge | None = None
    tokens: Mapping[str, str | None] = field(default_factory=lambda: NO_TOKENS)
    said_user: str = ""
    """The user that it says to be."""
    origin: Origin = Origin()  # noqa: RUF009 - it does not change
    """Once it has said who it is."""

    def meet(self, hello: Hello, let_in: LetIn, later: Callable[[Entry], None], held: HeldRequests) -> Entry | None:
        """Whether a peer comes in, by `let_in` if nothing speaks against it. None: `later` is told.

        A gateway waits in line while something is applied: letting it in may store something.
        """
        self.said_user, self.origin = hello.user, self._origin_of(hello)
        if not self.roles.allow(hello.role, self.names):
            return Refused(RefusedReason.CERTIFICATE, f"its certificate is not that of a {hello.role}")
        if hello.role == Role.GATEWAY and held.is_applying:
            held.do(lambda: later(let_in(hello, None)))
            return None
        if self.judge is None or hello.role != Role.CLIENT:
            return let_in(hello, None)
        found: list[Entry] = []
        at_once = True

        def judged(user: User | Refused | None) -> None:
            entry = user if isinstance(user, Refused) else let_in(hello, user)
            if at_once:
                found.append(entry)
            else:
                later(entry)

        self.judge.admit(hello, self.origin, judged)
        at_once = False
        return found[0] if found else None

    def _origin_of(self, hello: Hello) -> Origin:
        """A peer that could be an operator or a gateway here is believed for whom it asks, so that a console's browsers
        are not counted as the console.
        """
        if not hello.on_behalf_of:
            return Origin(self.address, self.names)
        if any(self._could_be(role, hello) for role in (Role.OPERATOR, Role.GATEWAY)):
            return Origin(hello.on_behalf_of, self.names)
        return Origin(self.address, self.names, hello.on_behalf_of)

    def _could_be(self, role: Role, hello: Hello) -> bool:
        if role not in self.tokens or not self.roles.allow(role, self.names):
            return False
        token = self.tokens[role]
        return token is None or any(same_token(token, shown) for shown in (hello.operator_token, hello.token))

    def banned(self, user: User | None) -> str:
        """The ban that ends an admitted client's connection; empty: it is not banned."""
        return self.judge.banned(self.origin, self.said_user if user is None else user.name) if self.judge else ""

    @property
    def shown(self) -> str:
        """The peer's origin, for people."""
        origin = self.origin.address or self.address
        return origin if origin == self.address else f"{origin} by way of {self.address}"
