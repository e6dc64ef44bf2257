"""`penstock init --secure`, by the commands in docs/security.md and those that it prints itself, word by word."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.interop.test_readme import ROOT, block, run

DOCUMENT = (ROOT / "docs" / "security.md").read_text()
FOLDER = "/srv/penstock"
BEGIN = f"""\
mount -t tmpfs tmpfs /srv
files=$PWD
wait_for() {{ until grep -qs "$1" $2; do sleep 0.05; done; }}
start() {{ (cd /srv && exec bash -c "exec $1") > $files/serve.log 2>&1 & wait_for ready $files/serve.log; }}
fails() {{ if "$@" > $files/failed.log 2>&1; then cat $files/failed.log; echo "it worked: $*"; exit 1; fi; }}
as() {{ who=$1; shift; program=$1; shift
    timeout 20 $program --cafile {FOLDER}/ca.pem --cert {FOLDER}/clients/$who.pem --key {FOLDER}/clients/$who.key \
        -h localhost -p 8883 "$@"; }}
"""
"""A network, and a /srv, of its own. `start COMMAND` serves, `as NAME PROGRAM ...` is one of Mosquitto's clients with a
device's certificate, `fails COMMAND` must fail."""


def document(marker: str, language: str = "sh") -> str:
    return block(f"<!-- secure: {marker}", language, DOCUMENT)


def printed(said: str, program: str) -> str:
    """The line that tells how to run a program."""
    return next(line.strip() for line in said.splitlines() if line.startswith(f"  {program} "))


def init(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "penstock", "init", "--secure", str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def test_the_document_word_by_word(tmp_path: Path) -> None:
    for name in ("penstock.toml", "permissions.toml"):
        (tmp_path / name).write_text(document(name, "toml"))
    script = f"""
{document("read and run")}
for name in penstock.toml permissions.toml; do diff $files/$name {FOLDER}/$name; cp $files/$name {FOLDER}/$name; done
start "{document("serve").strip()}"
({document("watch")}) > $files/watched.log &
until grep -qs . $files/watched.log; do ({document("publish")}); done
head -1 $files/watched.log
"""
    assert run(BEGIN + script, tmp_path).splitlines()[-1] == "devices/device-1/temperature 21.5"


def test_init_secure_commands_work_as_printed(tmp_path: Path) -> None:
    script = f"""
cd /srv
penstock init --secure {FOLDER} > $files/said.log
penstock init --secure /srv/other > $files/other.log
steps() {{ grep -F "  $1 " $files/said.log; }}
start "$(steps 'penstock serve')"
bash -c "$(steps mosquitto_sub)" > $files/watched.log &
until grep -qs . $files/watched.log; do bash -c "$(steps mosquitto_pub)"; done
bash -c "$(steps 'penstock pub')"
theirs="-t devices/device-1/forged -m x -q 1"
as device-2 mosquitto_pub -i device-2 -V 5 $theirs 2>&1 | tee $files/refused.log
grep -q "Not authorized" $files/refused.log
as device-2 mosquitto_sub -i device-2 -V 5 -t devices/device-1/# -C 1 -W 10 2>&1 | tee $files/refused.log
grep -q denied $files/refused.log
fails as device-2 mosquitto_pub -i device-1 $theirs
foreign="--cafile {FOLDER}/ca.pem --cert /srv/other/clients/device-1.pem --key /srv/other/clients/device-1.key"
fails mosquitto_pub -h localhost -p 8883 $foreign -i device-1 $theirs
fails mosquitto_pub -h localhost -p 8883 --cafile {FOLDER}/ca.pem -i device-1 $theirs
cp {FOLDER}/server.pem {FOLDER}/clients/fake.pem; cp {FOLDER}/server.key {FOLDER}/clients/fake.key
fails as fake mosquitto_pub -i device-1 $theirs
bash -c "$(steps 'penstock init' | grep add-device)"
as pump-7 mosquitto_pub -i pump-7 -q 1 -t devices/pump-7/temperature -m 5
cp {FOLDER}/clients/device-1.pem old.pem; cp {FOLDER}/clients/device-1.key old.key
bash -c "$(steps 'penstock init' | grep renew)"
as device-1 mosquitto_pub -i device-1 -q 1 -t devices/device-1/temperature -m 6
bash -c "$(steps 'penstock init' | grep revoke)"
wait_for "certificates reloaded" $files/serve.log
fails mosquitto_pub -h localhost -p 8883 --cafile {FOLDER}/ca.pem --cert old.pem --key old.key -i device-1 $theirs
as pump-7 mosquitto_pub -i pump-7 -q 1 -t devices/pump-7/temperature -m 7
wait_for "pump-7/temperature 7" $files/watched.log
"""
    run(BEGIN + script, tmp_path)
    watched = (tmp_path / "watched.log").read_text().splitlines()
    assert "forged" not in "".join(watched)
    assert "devices/device-1/temperature 6" in watched


def test_store_and_gateway_read_the_same_file(tmp_path: Path) -> None:
    """And an operator comes to that store by the token that was made for operators."""
    script = f"""
penstock init --secure {FOLDER} > $files/said.log
sed -i 's/^admin = .*/admin = "127.0.0.1:0"/' {FOLDER}/penstock.toml
penstock store --config {FOLDER}/penstock.toml > $files/store.log 2>&1 &
wait_for ready $files/store.log
start "penstock gateway --config {FOLDER}/penstock.toml --store tcp://127.0.0.1:7700"
as device-1 mosquitto_pub -i device-1 -q 1 -t devices/device-1/temperature -m 21.5
as device-2 mosquitto_pub -i device-2 -V 5 -t devices/device-1/forged -m x -q 1 2>&1 | grep "Not authorized"
penstock client list --store tcp://127.0.0.1:7700 --token-file {FOLDER}/tokens/operator --json
fails penstock client list --store tcp://127.0.0.1:7700 --token-file {FOLDER}/tokens/client
"""
    assert "Not authorized" in run(BEGIN + script, tmp_path)


def test_the_example_bounds_what_clients_may_use_up(tmp_path: Path) -> None:
    """Each of these is set, and to something else than no limit: the page says that the example is complete."""
    folder = tmp_path / "plant"
    init(folder)
    settings = tomllib.loads((folder / "penstock.toml").read_text())
    bounded = {
        "gateway": (
            "max_connections",
            "max_connections_per_address",
            "listener_connects_per_s",
            "max_keep_alive_s",
            "maximum_packet_size_bytes",
            "receive_maximum",
            "max_inflight",
            "max_subscriptions_per_session",
            "max_session_expiry_s",
        ),
        "quota": (
            "client_messages_per_s",
            "client_bytes_per_s",
            "user_connections",
            "user_subscriptions",
            "user_retained",
            "user_waiting_bytes",
        ),
        "store": ("retention_bytes", "retention_age_s"),
    }
    assert [
        (section, name) for section in bounded for name in bounded[section] if not settings[section].get(name)
    ] == []
    assert settings["auth"]["client_ids"] == "%u"
    assert settings["gateway"]["tls_client_certificates"] == "required"
    assert all(address.startswith("mqtts://") for address in settings["gateway"]["listen"])
    rules = (folder / "permissions.toml").read_text()
    assert 'default = "deny"' in rules
    assert "%c" not in rules
    assert not {"allow_anonymous", "allow_open_files", "token"} & {
        name for part in settings.values() if isinstance(part, dict) for name in part
    }


def test_everything_is_for_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "plant"
    said = init(folder, "--devices", "pump-1,pump-2", "--host", "mqtt.example.com")
    assert "mqtt.example.com" in printed(said, "mosquitto_pub")
    assert printed(said, "penstock pub").endswith("-i pump-1")
    found = {path: path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
    assert len({path.read_text() for path in (folder / "tokens").iterdir()}) == 3
    password = (folder / "clients" / "operator.password").read_text().strip()
    assert len(password) >= 22
    assert password not in said
    assert all(password not in path.read_text() for path in found if path.is_file() and path.suffix != ".password")


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "permissions.toml").write_text("mine")
    assert "is not empty" in init(tmp_path, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["permissions.toml"]
    folder = tmp_path / "plant"
    init(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "--add-device" in init(folder, code=2)
    assert "--renew" in init(folder, "--add-device", "device-1", code=2)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--devices", "a/b"], "not a device's name"),
        (["--devices", "#"], "not a device's name"),
        (["--devices", "operator"], "not a device's name"),
        (["--devices", "a,a"], "each once"),
        (["--devices", "0"], "1 to 100000"),
        (["--host", "a b"], "not a host name"),
        (["--add-device", "../ca"], "not a device's name"),
        (["--add-device", "a"], "ca.pem"),
        (["--revoke", "a"], "issued.txt"),
        (["--add-device", "a", "--devices", "2"], "are for a new folder"),
    ],
)
def test_a_mistake_is_named_and_makes_nothing(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    folder = tmp_path / "plant"
    command = [sys.executable, "-m", "penstock", "init", "--secure", str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert complaint in done.stderr
    assert re.fullmatch(r"penstock: [^\n]*\n", done.stderr)
    assert not folder.exists()


def test_the_server_s_certificate_is_renewed_for_the_same_names_or_others(tmp_path: Path) -> None:
    folder = tmp_path / "plant"
    init(folder, "--host", "one.example")
    assert "one.example, localhost, 127.0.0.1, ::1" in init(folder, "--renew-server")
    assert "two.example, localhost" in init(folder, "--renew-server", "--host", "two.example")
