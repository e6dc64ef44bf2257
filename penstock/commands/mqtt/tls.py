"""How `pub` and `sub` know that they speak to the right server, and it to whom it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.commands.mqtt.address import ServerAddress
from penstock.errors import UsageError

if TYPE_CHECKING:  # who asks for help has no use for it
    import ssl

CaFile = Annotated[
    str | None,
    typer.Option("--cafile", metavar="FILE", help="Who vouches for the server, in place of the system's authorities."),
]
Cert = Annotated[str | None, typer.Option("--cert", metavar="FILE", help="Certificate to show to the server.")]
Key = Annotated[str | None, typer.Option("--key", metavar="FILE", help="Key of --cert, if it is not in the same file.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Take a certificate that is for another host name.")]


@dataclass(frozen=True, slots=True)
class Tls:
    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    is_insecure: bool = False

    @property
    def is_given(self) -> bool:
        return bool(self.ca_file or self.certificate or self.key or self.is_insecure)

    def context_for(self, address: ServerAddress) -> ssl.SSLContext | None:
        """The TLS context of the connection; None for one that is not. Raises UsageError."""
        given = [
            name
            for name, value in (
                ("--cafile", self.ca_file),
                ("--cert", self.certificate),
                ("--key", self.key),
                ("--insecure", self.is_insecure),
            )
            if value
        ]
        if not address.is_tls:
            if given:
                raise UsageError(f"{given[0]}: {address} has no TLS; use mqtts:// or wss://")
            return None
        import ssl

        if self.key and not self.certificate:
            raise UsageError("--key: belongs to --cert; give both")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise UsageError(f"--cafile {self.ca_file}: {_why(error)}; name a readable PEM file") from None
        context.check_hostname = not self.is_insecure
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
            except (OSError, ValueError) as error:
                raise UsageError(f"--cert {self.certificate}: {_why(error)}; name readable PEM files") from None
        return context


def _no_password() -> str:
    raise ValueError("its key has a password")


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)  # of an SSLError
    if reason:
        return f"no PEM, or a key that does not match ({reason})"
    return getattr(error, "strerror", None) or str(error)
