"""MQTT.js in a page of a real browser, over WebSocket with and without TLS."""

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.conftest import IN_ALL_TOPOLOGIES, SharedServers
from tests.interop.browser import Browser
from tests.interop.client_table import ROWS
from tests.interop.programs import PahoClient
from tests.interop.test_client_table import JS, node
from tests.support.certificates import authority, vouched_for
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

ROW = next(row for row in ROWS if "Chromium" in row.name)
SEEN = "[...document.querySelectorAll('#seen li')].map((line) => line.textContent).join('|')"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nobody wants to know."""


@pytest.fixture
def site() -> Iterator[str]:
    """Serves tests/interop/js."""
    node()
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(JS))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def place(shared_server: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> tuple[PenstockServer, Path]:
    folder = tmp_path_factory.mktemp("place")
    made = vouched_for(folder, "server", "DNS:localhost", authority(folder, "authority"))
    settings = {"gateway.tls_certificate": made.certificate, "gateway.tls_key": made.key}
    urls = "mqtt://127.0.0.1:0,ws://localhost:0,wss://localhost:0"
    return shared_server(settings=settings | {"gateway.listen": urls}), made.certificate


@pytest.mark.parametrize("transport", ROW.transports)
@pytest.mark.parametrize("version", ROW.versions)
def test_a_page_subscribes_and_publishes(
    place: tuple[PenstockServer, Path], tmp_path: Path, site: str, transport: str, version: int
) -> None:
    server, certificate = place
    url = next(url for url in server.urls if url.startswith(f"{transport}://"))
    witness = PahoClient(server.port).connect().subscribe("table/#", 2)
    topic = f"table/{transport}/{version}"
    page = f"{site}/page.html#{quote(f'{url}|{version}')}"
    with Browser(page, tmp_path / "chromium", certificate) as browser:
        browser.wait_for(SEEN, "|".join(f"{topic} {qos} {qos}" for qos in range(3)))
        witness.publish(topic, [b"from elsewhere"], 1)
        browser.wait_for("document.querySelector('#seen').lastElementChild.textContent", f"{topic} from elsewhere 1")
    found = [payload for _, payload in witness.messages(4)]  # one of QoS 2 takes another round trip
    assert sorted(found) == [b"0", b"1", b"2", b"from elsewhere"]
