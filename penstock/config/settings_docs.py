"""Print docs/settings.md, which comes from the dataclasses of the settings: `make docs`."""

from collections.abc import Iterator

from penstock.config.settings_tree import SETTINGS, Setting, section_of

HEAD = """\
# Settings

<!-- Made by `make docs` from the dataclasses of the settings; edit those. -->

A flag wins over an environment variable, which wins over the TOML file named by `--config` (or
`PENSTOCK_CONFIG`), which wins over the default. `penstock serve --print-config` prints the
settings in force as such a file, without secrets.

Every setting has an environment variable: `store.flush` is `PENSTOCK_STORE__FLUSH`, `log_level` is
`PENSTOCK_LOG_LEVEL`. Settings with a flag have a short variable too, shown below. In a variable commas
separate the items of a list; an empty variable counts as unset. Units are in the names: `_bytes`, `_ms`, `_s`.
"""
TITLES = {
    "": "The command",
    "store": "[store]",
    "wire": "[wire]",
    "notify": "[notify]",
    "gateway": "[gateway]",
    "auth": "[auth]",
    "quota": "[quota]",
    "audit": "[audit]",
    "tracing": "[tracing]",
    "console": "[console]",
    "tier": "[tier]",
    "flows": "[flows]",
}
UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def settings_page() -> str:
    return "\n".join([HEAD, *(line for section in TITLES for line in _section(section))])


def _section(section: str) -> Iterator[str]:
    yield f"## {TITLES[section]}\n"
    yield "| setting | default | allowed | what it does |"
    yield "|---|---|---|---|"
    for setting in SETTINGS.values():
        if section_of(setting.path) == section:
            yield _row(setting)
    yield ""


def _row(setting: Setting) -> str:
    cells = [_names(setting), _shown_default(setting), setting.allowed, setting.doc]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _names(setting: Setting) -> str:
    names = [setting.path]
    if setting.flag:
        names += [setting.flag, setting.environment_names[0]]
    return "<br>".join(f"`{name}`" for name in names)


def _shown_default(setting: Setting) -> str:
    default = setting.default
    if default is None:
        return "unset"
    if isinstance(default, tuple):
        return ", ".join(f"`{item}`" for item in default) or "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int) and setting.path.endswith("_bytes"):
        return f"`{default}`{_in_larger_units(default)}"
    return f"`{default}`"


def _in_larger_units(size_bytes: int) -> str:
    for unit, unit_bytes in UNITS:
        if size_bytes % unit_bytes == 0:
            return f" ({size_bytes // unit_bytes} {unit})"
    return ""


if __name__ == "__main__":
    print(settings_page(), end="")
