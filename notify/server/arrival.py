"""A connection before its peer is let in: what is known of it, and who says whether it may come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from notify.links.certificates import CertifiedRoles
from notify.requests.users import User, UserJudge
from notify.server.held import HeldRequests
from store.wire.messages import Hello, Refused, RefusedReason, Role, Welcome

Entry = Welcome | Refused
LetIn = Callable[[Hello, User | None], Entry]


@dataclass(slots=True)
class Arrival:
    """`address` is where it comes from, `names` are those of its certificate; `judge` None: users are not judged."""

    address: str = ""
    names: tuple[str, ...] = ()
    roles: CertifiedRoles = CertifiedRoles(())  # noqa: RUF009 - it has no state that changes
    judge: UserJudge | None = None

    def meet(self, hello: Hello, let_in: LetIn, later: Callable[[Entry], None], held: HeldRequests) -> Entry | None:
        """Whether a peer comes in, by `let_in` if nothing speaks against it. None: `later` is told.

        A gateway waits in line while something is applied: letting it in may store something.
        """
        if not self.roles.allow(hello.role, self.names):
            return Refused(RefusedReason.CERTIFICATE, f"its certificate is not that of a {hello.role}")
        if hello.role == Role.GATEWAY and held.is_applying:
            held.do(lambda: later(let_in(hello, None)))
            return None
        if self.judge is None or hello.role != Role.CLIENT:
            return let_in(hello, None)
        found: list[Entry] = []
        at_once = True

        def judged(user: User | str) -> None:
            entry = Refused(RefusedReason.USER, user) if isinstance(user, str) else let_in(hello, user)
            if at_once:
                found.append(entry)
            else:
                later(entry)

        self.judge.admit(hello, self.address, self.names, judged)
        at_once = False
        return found[0] if found else None
