"""Other users cannot read the files of a running server."""

import stat
from pathlib import Path

import pytest

from tests.conftest import ServerFactory
from tests.interop.programs import penstock, run


def modes(folder: Path) -> set[tuple[str, int]]:
    """Of every file and folder, sockets apart."""
    found = [(path, path.stat().st_mode) for path in [folder, *folder.rglob("*")]]
    return {("folder" if stat.S_ISDIR(mode) else "file", mode & 0o777) for _, mode in found if not stat.S_ISSOCK(mode)}


SMALL = {
    "store.segment_bytes": 65_536,
    "store.retention_bytes": 65_536,
    "store.retention_check_s": 1,
    "gateway.maximum_packet_size_bytes": 32_768,
}


def test_everything_that_a_server_writes_is_for_its_owner(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings=SMALL)
    url = f"mqtt://127.0.0.1:{server.port}"
    run(*penstock("pub", "t", "-l", "-q", "1", "--url", url), stdin=(b"x" * 10_000 + b"\n") * 40)
    server.terminate()
    server.restart()
    assert modes(server.data) == {("folder", 0o700), ("file", 0o600)}
    for path in [server.data, *server.data.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    server.restart()
    assert modes(server.data) == {("folder", 0o700), ("file", 0o600)}
    assert "store.group_access" in server.log_text()


def test_a_group_that_may_read(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"store.group_access": True})
    run(*penstock("pub", "t", "-m", "x", "-q", "1", "--url", f"mqtt://127.0.0.1:{server.port}"))
    audit = server.data / "audit.jsonl"
    assert audit.stat().st_mode & 0o777 == 0o600  # not for those who read messages
    audit.unlink()
    assert modes(server.data) == {("folder", 0o750), ("file", 0o640)}


@pytest.mark.parametrize("mode", ["0600", "0660"])
def test_the_mode_of_a_unix_socket_is_a_setting(penstock_server: ServerFactory, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "mqtt.sock"
    penstock_server(settings={"gateway.listen": f"unix://{path}", "gateway.unix_socket_mode": mode})
    assert path.stat().st_mode & 0o777 == int(mode, 8)
