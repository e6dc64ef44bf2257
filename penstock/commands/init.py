"""`penstock init`: create all files of a secure server in one folder."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import UsageError

Names = list[str] | None


def init(
    secure: Annotated[
        Path,
        typer.Option(
            "--secure",
            metavar="DIR",
            help="The folder. It must be missing or empty, except with the last four options.",
        ),
    ],
    host: Annotated[
        Names,
        typer.Option(
            "--host", metavar="NAME", help="Name or address by which clients reach the server; may be repeated."
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option("--devices", metavar="N|NAME,NAME", help="Number of devices to create, or their names."),
    ] = None,
    add_device: Annotated[
        Names, typer.Option("--add-device", metavar="NAME", help="Add a device with its own certificate.")
    ] = None,
    renew: Annotated[
        Names, typer.Option("--renew", metavar="NAME", help="Renew the certificate and key of a device.")
    ] = None,
    renew_server: Annotated[
        bool, typer.Option("--renew-server", help="Renew those of the server; --host changes its names.")
    ] = False,
    revoke: Annotated[
        Names, typer.Option("--revoke", metavar="NAME", help="Revoke the certificates of a device.")
    ] = None,
) -> None:
    """Create a CA, certificates for the server and for devices, rules and settings, and print the next steps.

    Existing files are never overwritten. Only the owner may read the new files (0600).
    """
    from penstock.secure.folder import SecureFolder
    from penstock.secure.texts import names_of, next_steps

    folder = SecureFolder(secure)
    if not (add_device or renew or renew_server or revoke):
        names = names_of("2" if devices is None else devices)
        hosts = folder.make(host or [], names)
        first = host[0] if host else "localhost"
        typer.echo(f"made {folder.path} with {len(names)} device(s), for a server called {', '.join(hosts)}\n")
        typer.echo(next_steps(folder.path, first, names[0]))
        return
    if devices is not None or (host and not renew_server):
        raise UsageError("--devices and --host are for a new folder; leave them out")
    for name in add_device or []:
        folder.add(name)
        typer.echo(f"{name}: give it ca.pem, clients/{name}.pem and clients/{name}.key of {folder.path}")
    for name in renew or []:
        folder.renew(name)
        typer.echo(f"{name}: clients/{name}.pem and clients/{name}.key are new; the old ones hold until they end")
    if renew_server:
        typer.echo(f"server: a new certificate for {', '.join(folder.renew_server(host or []))}")
    for name in revoke or []:
        count = folder.revoke(name)
        typer.echo(f"{name}: {count} certificate(s) revoked; running servers read {folder.path / 'revoked.pem'} again")
