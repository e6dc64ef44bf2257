"""`penstock migrate`: a mosquitto.conf as configuration of Penstock."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import PenstockError, UsageError

MOST_BYTES = 16 << 20


def migrate(
    conf: Annotated[Path, typer.Argument(metavar="MOSQUITTO.CONF", help="Mosquitto's configuration.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="Write the files there; nothing that is there is replaced. Otherwise they are printed.",
        ),
    ] = None,
) -> None:
    """Turn a mosquitto.conf into penstock.toml, and its rules and bridges into permissions.toml and flows.toml.

    What has no counterpart, and what is to be looked at, is said in comments at the top. Passwords are neither read nor
    written.
    """
    from penstock.migration.mosquitto import files, migrated
    from penstock.migration.mosquitto_conf import MosquittoConf, acl_rules, user_names

    read = MosquittoConf.parse(_text(conf))
    acl = read.value("acl_file")
    users = read.value("password_file")
    rules = acl_rules(_text(conf.parent / acl)) if acl else None
    made = migrated(read, rules, user_names(_text(conf.parent / users)) if users else [])
    found = files(made, conf.name)
    if folder is None:
        first, *others = found
        typer.echo(found[first], nl=False)
        for name in others:
            typer.echo(f"\n# ---- {name} ----\n{found[name]}", nl=False)
        return
    _write(folder, found)
    for note in made.notes:
        typer.echo(f"look at: {note}", err=True)
    typer.echo(f"check it: penstock serve --config {folder / 'penstock.toml'} --print-config")


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise PenstockError(
            f"{file}: {error.strerror}; copy it beside mosquitto.conf, or correct its path there"
        ) from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{file}: more than {MOST_BYTES:,} bytes; it is no configuration of Mosquitto")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not UTF-8; convert it first") from None


def _write(folder: Path, found: dict[str, str]) -> None:
    for name in found:
        if (folder / name).exists():
            raise UsageError(f"{folder / name}: is there already; name another folder, or move it away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
            typer.echo(f"{folder / name}")
    except OSError as error:
        raise PenstockError(f"{folder}: {error.strerror}; name a folder that can be written") from None
