"""Loads the settings: flags over the environment over a TOML file over the defaults.

Each layer becomes a flat mapping from a setting's path (`store.flush`) to what was given and where,
so that laying one over another is a dict update and every complaint can say where to look.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.config.settings_tree import (
    FLAGS,
    SETTINGS,
    NotAllowed,
    Setting,
    Settings,
    build,
    section_of,
    value_of,
)
from penstock.config.toml_text import toml_value
from penstock.errors import SettingsError

__all__ = ["Settings", "load", "render"]

SECTIONS = {section_of(path) for path in SETTINGS} - {""}


class Given(NamedTuple):
    value: object
    origin: str


def load(
    flags: Mapping[str, object],
    env: Mapping[str, str],
    config_path: Path | None = None,
) -> Settings:
    """The settings in force. `flags` are by flag name without dashes, or by the setting's path where a command uses a
    flag for another setting than the rest (`wire.listen`); None and () mean not given.

    Raises SettingsError, whose text is one line, at the first thing that is wrong.
    """
    given = _given_outside(env, config_path) | _from_flags(flags)
    settings = build({path: _parse(path, *given[path]) for path in given})
    _check_together(settings)
    return settings


def given(env: Mapping[str, str], config_path: Path | None = None) -> set[str]:
    """Paths of the settings that the environment or a file gives. Raises SettingsError."""
    return set(_given_outside(env, config_path))


def render(settings: Settings, hide_secrets: bool = True) -> str:
    """The settings as a TOML file that `--config` accepts; of a secret it says only that there is one."""
    lines: list[str] = []
    for section in ("", *sorted(SECTIONS)):
        if section:
            lines += ["", f"[{section}]"]
        for setting in SETTINGS.values():
            if section_of(setting.path) == section:
                lines += _toml_lines(setting, value_of(settings, setting.path), hide_secrets)
    return "\n".join(lines) + "\n"


def as_json(settings: Settings) -> str:
    """All settings by their paths as a JSON object; in place of a secret is `***`, or a URL without it."""
    found: dict[str, object] = {}
    for setting in SETTINGS.values():
        value = value_of(settings, setting.path)
        shown = setting.shown(value)
        found[setting.path] = value if shown is None else shown
    return json.dumps(found, default=str)


def _given_outside(env: Mapping[str, str], config_path: Path | None) -> dict[str, Given]:
    file = config_path or env.get("PENSTOCK_CONFIG")
    return (_from_file(Path(file)) if file else {}) | _from_environment(env)


def _from_file(file: Path) -> dict[str, Given]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError(f"{file}: {reason}; name a readable TOML file with --config or PENSTOCK_CONFIG") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: not TOML: {error}; correct the file") from None
    return {path: Given(value, str(file)) for path, value in _flatten(document, file)}


def _flatten(document: Mapping[str, Any], file: Path) -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        if key not in SECTIONS:
            yield _known(key, str(file)), value
        elif isinstance(value, dict):
            for name, inner in value.items():
                yield _known(f"{key}.{name}", str(file)), inner
        else:
            raise SettingsError(
                f"{key}: {value!r} is not a table; write [{key}] and its settings below it (from {file})"
            )


def _from_environment(env: Mapping[str, str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    paths = {name: path for path in SETTINGS for name in SETTINGS[path].environment_names}
    for name, value in env.items():
        # An empty variable is what compose files and charts leave behind for "not set".
        if not name.startswith("PENSTOCK_") or not value:
            continue
        # Kubernetes sets PENSTOCK_PORT and the like beside a service called penstock; only a name
        # with a double underscore is certain to be meant for us.
        path = paths.get(name)
        if path is None:
            if "__" in name:
                _known(name.removeprefix("PENSTOCK_").lower().replace("__", "."), name)
            continue
        if path in given:
            raise SettingsError(f"{path}: both {given[path].origin} and {name} are set; unset one")
        given[path] = Given(value, name)
    return given


def _from_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    paths = {name: path for path, name in FLAGS.items()}
    for name, value in flags.items():
        if value is not None and value != () and value != []:
            path = paths.get(name, name)
            given[path] = Given(value, SETTINGS[path].flag or f"--{path.rpartition('.')[2]}")
    return given


def _known(path: str, origin: str) -> str:
    if path in SETTINGS:
        return path
    same_name = [known for known in SETTINGS if known.rpartition(".")[2] == path]
    alike = same_name or difflib.get_close_matches(path, SETTINGS, 1)
    hint = f"did you mean {alike[0]}?" if alike else "`penstock serve --print-config` lists them"
    raise SettingsError(f"{path}: no such setting; {hint} (from {origin})")


def _parse(path: str, value: object, origin: str) -> object:
    try:
        return SETTINGS[path].parse(value)
    except NotAllowed as error:
        raise SettingsError(f"{path}: {error} (from {origin})") from None


def _check_together(settings: Settings) -> None:
    packet_bytes = settings.gateway.maximum_packet_size_bytes
    segment_bytes = settings.store.segment_bytes
    if packet_bytes > segment_bytes // 2:
        raise SettingsError(
            f"gateway.maximum_packet_size_bytes: {packet_bytes} is more than half of "
            f"store.segment_bytes ({segment_bytes}); lower the first or raise the second"
        )


def _toml_lines(setting: Setting, value: object, hide_secrets: bool) -> Iterator[str]:
    yield f"# {setting.doc} Takes {setting.allowed}."
    name = setting.path.rpartition(".")[2]
    shown = setting.shown(value) if hide_secrets else None
    if shown is not None:
        yield f"# {name} is set, but hidden here, as it is a secret: {toml_value(shown)}"
        return
    yield f"# {name} is not set" if value is None else f"{name} = {toml_value(value)}"
