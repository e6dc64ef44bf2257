"""Without tracing a process has the plain parts, and loads nothing of OpenTelemetry."""

import subprocess
import sys
from pathlib import Path

from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from notify.remote.store import RemoteStore
from penstock.tracing.opening import TracingParts
from tests.support.server_process import ROOT
from tests.support.store_protocol_bench import Nowhere
from tests.support.stores import small


def test_without_tracing_the_parts_are_the_plain_ones(tmp_path: Path) -> None:
    parts = TracingParts(None)
    store = parts.message_store(small(tmp_path / "data"), lambda: None, lambda done, of: None)
    try:
        assert type(store) is MessageStore
        assert type(parts.local_store(Hub(store))) is LocalStore
        remote = parts.remote_store(1.0, 1 << 20, Nowhere(), lambda: 0.0)
        assert type(remote) is RemoteStore
    finally:
        store.close()


def test_a_server_and_a_client_load_nothing_of_it() -> None:
    program = (
        "import sys, penstock.servers.server, penstock.servers.gateway_process, penstock.servers.store_process\n"
        "import penstock.sdk.client\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
