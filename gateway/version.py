"""The version that $SYS and the metrics tell."""

from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # run from its source folder
        return "unknown"


VERSION = _installed_version()
