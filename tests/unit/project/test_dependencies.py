"""Dependencies have bounds, so that a new major version comes in only after a review."""

import tomllib
from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.requirements import Requirement

from tests.support.server_process import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
REQUIREMENTS = {
    "build-system": PROJECT["build-system"]["requires"],
    "dependencies": PROJECT["project"]["dependencies"],
    **EXTRAS,
}
ALL = [
    pytest.param(Requirement(text), id=f"{where}: {text}")
    for where, texts in REQUIREMENTS.items()
    for text in texts
    if not text.startswith("penstock[")
]


@pytest.mark.parametrize("requirement", ALL)
def test_every_dependency_has_a_lower_and_an_upper_bound(requirement: Requirement) -> None:
    operators = {each.operator for each in requirement.specifier}
    assert operators & {"<", "<=", "==", "~="}, requirement
    assert operators & {">", ">=", "==", "~="}, requirement


@pytest.mark.parametrize("requirement", ALL)
def test_installed_packages_are_within_the_bounds(requirement: Requirement) -> None:
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        pytest.skip(f"{requirement.name} is not installed")
    assert requirement.specifier.contains(installed, prereleases=True), installed
