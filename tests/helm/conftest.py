"""Each test that takes `rendered` runs once for every values file."""

import pytest

from tests.helm.chart import VALUES, Rendered, render


@pytest.fixture(params=VALUES)
def values_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rendered(values_name: str) -> Rendered:
    return render("--values", VALUES[values_name])


@pytest.fixture
def everything() -> Rendered:
    return render("--values", VALUES["everything"])


@pytest.fixture
def minimal() -> Rendered:
    return render("--values", VALUES["minimal"])
