"""The image's entry point, run as a program: it is reachable, and admits clients with the password that it printed."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

from penstock.container import prepared
from penstock.errors import SettingsError, UsageError
from tests.interop.programs import run

PROGRAM = [sys.executable, "-P", "-m", "penstock.container"]
ANY_ADDRESS = ["--listen", "mqtt://0.0.0.0:0"]
START_S = 60
REFUSED, WRONG = 5, 4  # CONNACK of MQTT 3.1.1, which mosquitto_pub passes on


class Container:
    """The program, ended by close(). `said` has its standard output up to the line with its port."""

    def __init__(self, data: Path, *arguments: str, **variables: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        command = [*PROGRAM, "serve", "--data", str(data), *arguments]
        self.process = subprocess.Popen(
            command,
            env=inherited | {"PENSTOCK_CONSOLE__ENABLED": "false"} | variables,
            cwd=data.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        watchdog = Timer(START_S, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        self.said = ""
        while "ready" not in self.said:
            line = self.process.stdout.readline()
            assert line, self.process.communicate()
            self.said += line
        watchdog.cancel()
        (self.port,) = re.findall(r"ready mqtt://[\d.]+:(\d+)", self.said)

    @property
    def password(self) -> str:
        (found,) = re.findall(r"the user name penstock and the password (\S+)", self.said)
        return str(found)

    def publish(self, *options: str, code: int = 0) -> None:
        run("mosquitto_pub", "-p", self.port, "-t", "t", "-m", "1", "-q", "1", *options, code=code)

    def close(self) -> None:
        self.process.terminate()
        _, errors = self.process.communicate(timeout=START_S)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "volume" / "data"


@pytest.fixture(autouse=True)
def volume(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()


def test_the_first_start_makes_a_password_and_prints_it(data: Path) -> None:
    container = Container(data, *ANY_ADDRESS)
    password = container.password
    container.publish("-u", "penstock", "-P", password)
    container.publish(code=REFUSED)
    container.publish("-u", "penstock", "-P", "wrong", code=WRONG)
    container.close()
    file = data / "passwords"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert password not in file.read_text()

    again = Container(data, *ANY_ADDRESS)
    assert password not in again.said
    assert "that the first start printed" in again.said
    again.publish("-u", "penstock", "-P", password)
    again.publish(code=REFUSED)
    again.close()


def test_everybody_comes_in_where_the_operator_says_so(data: Path) -> None:
    container = Container(data, *ANY_ADDRESS, PENSTOCK_ALLOW_ANONYMOUS="true")
    assert "password" not in container.said
    container.publish()
    container.close()
    assert not (data / "passwords").exists()


def test_false_is_not_true(data: Path) -> None:
    container = Container(data, *ANY_ADDRESS, PENSTOCK_ALLOW_ANONYMOUS="false")
    container.publish(code=REFUSED)
    container.publish("-u", "penstock", "-P", container.password)
    container.close()


def test_settings_about_clients_take_the_place_of_the_password(data: Path, tmp_path: Path) -> None:
    users = tmp_path / "users"
    run(sys.executable, "-P", "-m", "penstock", "passwd", str(users), "ann", "--stdin", stdin=b"secret\n")
    container = Container(data, *ANY_ADDRESS, PENSTOCK_AUTH__PASSWORD_FILE=str(users))
    container.publish("-u", "ann", "-P", "secret")
    container.publish(code=REFUSED)
    container.close()
    assert not (data / "passwords").exists()


def test_container_on_loopback_needs_no_password(data: Path) -> None:
    container = Container(data, "--listen", "mqtt://127.0.0.1:0")
    container.publish()
    container.close()


def test_container_listens_on_all_addresses_by_default(data: Path, tmp_path: Path) -> None:
    serve = ["serve", "--data", str(data)]
    arguments, environment = prepared(serve, {"A": "b"})
    assert arguments == [*serve, "--listen", "mqtt://0.0.0.0:1883"]
    of_users = {"PENSTOCK_AUTH__PASSWORD_FILE": str(data / "passwords")}
    assert environment == {"A": "b", **of_users, "PENSTOCK_CONSOLE__LISTEN": "0.0.0.0:8080"}
    config = tmp_path / "penstock.toml"
    config.write_text('[gateway]\nlisten = ["mqtt://127.0.0.1:1883"]\n')
    for given, variables in (
        ([*serve, "--listen=mqtt://127.0.0.1:1883"], {}),
        ([*serve, "--config", str(config)], {}),
        (serve, {"PENSTOCK_CONFIG": str(config)}),
        (serve, {"PENSTOCK_LISTEN": "mqtt://127.0.0.1:1883"}),
        (["gateway", "--store", "tcp://store:7700"], {}),
        (["sub", "#"], {}),
        ([], {}),
        (["serve", "--help"], {}),
    ):
        assert prepared(given, variables) == (given, variables)


def test_container_reports_errors_in_one_line(data: Path) -> None:
    with pytest.raises(SettingsError, match="both PENSTOCK_ALLOW_ANONYMOUS and"):
        prepared(["serve"], {"PENSTOCK_ALLOW_ANONYMOUS": "true", "PENSTOCK_AUTH__ALLOW_ANONYMOUS": "true"})
    with pytest.raises(UsageError, match="expected one argument"):
        prepared(["serve", "--data"], {})
    data.write_text("a file\n")
    done = subprocess.run([*PROGRAM, "serve", "--data", str(data)], capture_output=True, text=True, timeout=START_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"penstock: \S+/data: \w.*; mount a volume that user \d+ can write.*\n", done.stderr)
    done = subprocess.run(
        [*PROGRAM, "serve"],
        env=os.environ | {"PENSTOCK_ALLOW_ANONYMOUS": "perhaps"},
        capture_output=True,
        text=True,
        timeout=START_S,
        cwd=data.parent,
    )
    assert done.returncode == 2
    assert "auth.allow_anonymous" in done.stderr
    assert done.stderr.count("\n") == 1
