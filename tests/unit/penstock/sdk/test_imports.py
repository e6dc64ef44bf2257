"""The names that programs import from `penstock`: all that docs/sdk.md names, without what a server needs."""

import re
import subprocess
import sys

import pytest

import penstock
from penstock import AutoBatch, Compression, Message, Receipt
from tests.support.server_process import ROOT

SDK = (ROOT / "docs" / "sdk.md").read_text()


def test_types_are_where_programs_look_for_them() -> None:
    assert (AutoBatch.__module__, Compression.__module__) == ("penstock.sdk.autobatch", "penstock.sdk.compression")
    assert (Message.__module__, Receipt.__module__) == ("penstock.sdk.message", "penstock.sdk.message")


@pytest.mark.parametrize("name", penstock.__all__)
def test_each_name_is_there_and_documented(name: str) -> None:
    assert getattr(penstock, name).__name__ == name
    assert name in dir(penstock)
    assert f"`{name}`" in SDK or f"`{name}(" in SDK


def test_each_documented_error_is_there() -> None:
    (errors,) = re.findall(r"(?ms)^## Errors$(.*)", SDK)
    named = re.findall(r"`([A-Z][A-Za-z]+)`", errors)
    assert len(named) > 10
    assert set(named) <= set(penstock.__all__)


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Broker'"):
        getattr(penstock, "Broker")  # noqa: B009


def test_a_store_apart_imports_no_gateway() -> None:
    """Of the gateway it has the settings, for one file configures both, and the rules by which users are judged."""
    modules = "penstock.servers.store_process, penstock.servers.admin, notify.server.wire_metrics"
    program = f"import sys, {modules}; print(*(name for name in sys.modules if name.startswith('gateway.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    settings = {"gateway.settings", "gateway.listen_address", "gateway.access", "gateway.access.quota_settings"}
    plain = {"gateway.auth", "gateway.mqtt", "gateway.mqtt.errors", "gateway.mqtt.reason_codes", "gateway.mqtt.topics"}
    found = {name for name in done.stdout.split() if not name.startswith("gateway.auth.")}
    assert found <= settings | plain


def test_importing_penstock_alone_imports_no_client() -> None:
    program = "import sys, penstock; print([name for name in sys.modules if name.startswith('penstock.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
