"""The files of a data folder are for its owner alone, or for its group too if a setting says so."""

import logging
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from store.files.folder import DataFolder
from tests.support.stores import small


def modes(folder: Path) -> dict[str, int]:
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in paths if not path.is_symlink()}


def loosen(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder as earlier versions left it."""
    folder = tmp_path / "data"
    MessageStore(small(folder)).close()
    loosen(folder)
    return folder


def test_a_new_folder_is_closed(tmp_path: Path) -> None:
    DataFolder(tmp_path / "data").close()
    assert modes(tmp_path / "data") == {".": 0o700, "log": 0o700, "LOCK": 0o600}


def test_an_existing_folder_is_closed_at_start_and_a_line_says_so(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert (old / "index").is_dir()
    with caplog.at_level(logging.INFO, "penstock.store"):
        DataFolder(old).close()
        DataFolder(old).close()
    assert not [name for name, mode in modes(old).items() if mode & 0o077]
    (line,) = caplog.messages
    assert str(old) in line
    assert "store.group_access" in line


def test_the_group_may_read_if_a_setting_says_so(old: Path) -> None:
    DataFolder(old, group_access=True).close()
    assert set(modes(old).values()) == {0o750, 0o640}
    DataFolder(old).close()
    assert set(modes(old).values()) == {0o700, 0o600}
    DataFolder(old, group_access=True).close()
    assert set(modes(old).values()) == {0o750, 0o640}


def test_a_folder_of_others_keeps_its_mode_and_ours_in_it_are_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "not-ours").write_text("x")
    (tmp_path / "not-ours").chmod(0o644)
    DataFolder(tmp_path).close()
    assert modes(tmp_path) == {".": 0o755, "not-ours": 0o644, "log": 0o700, "LOCK": 0o600}


def test_the_target_of_a_symbolic_link_is_left_alone(old: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("x")
    target.chmod(0o644)
    (old / "log" / "link").symlink_to(target)
    DataFolder(old).close()
    assert target.stat().st_mode & 0o777 == 0o644


def test_setgid_stays(old: Path) -> None:
    (old / "log").chmod(0o2775)
    DataFolder(old, group_access=True).close()
    assert (old / "log").stat().st_mode & 0o7777 == 0o2750
