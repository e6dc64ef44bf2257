"""A built image is started as its documentation says and used by stock clients.

    python -m tests.support.image_trial IMAGE

It takes Docker or Podman, the first that works here, and removes the containers and volumes that it makes.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

READY_S = 60
COMMAND_S = 60
REFUSED, WRONG = 5, 4  # CONNACK of MQTT 3.1.1, which mosquitto_pub passes on
USER_ID = "10001"
ANONYMOUS = ("--env", "PENSTOCK_ALLOW_ANONYMOUS=true")


def run(*command: str, code: int = 0) -> str:
    """What a program prints on both of its outputs."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S)
    assert done.returncode == code, (command, done.returncode, done.stdout)
    return done.stdout


class Container:
    """A container of the image, with a volume and a port of this machine."""

    def __init__(self, engine: str, name: str) -> None:
        self.engine, self.name = engine, name
        self.starts = 0

    def first_start(self, image: str, *options: str) -> None:
        published = ("--publish", "127.0.0.1::1883", "--volume", f"{self.name}:/var/lib/penstock")
        run(self.engine, "run", "--detach", "--name", self.name, *published, *options, image)
        self._wait_until_ready()

    def kill(self) -> None:
        """With SIGKILL."""
        run(self.engine, "kill", self.name)
        run(self.engine, "wait", self.name)

    def start(self) -> None:
        run(self.engine, "start", self.name)
        self._wait_until_ready()

    def log(self) -> str:
        return run(self.engine, "logs", self.name)

    def inside(self, *command: str) -> str:
        return run(self.engine, "exec", self.name, *command).strip()

    def check_health(self) -> None:
        """Run the image's health check, which fails by its exit code."""
        check = json.loads(run(self.engine, "inspect", "--format", "{{json .Config.Healthcheck}}", self.name))
        assert check["Test"][0] == "CMD", check
        self.inside(*check["Test"][1:])

    def publish(self, *options: str, code: int = 0) -> None:
        run("mosquitto_pub", *self._address(), "-t", "line/7/temp", "-m", "21.5", "-q", "1", *options, code=code)

    def retained(self, *options: str) -> str:
        return run("mosquitto_sub", *self._address(), "-t", "line/7/temp", "-C", "1", "-W", "10", *options).strip()

    def remove(self) -> None:
        for command in (("rm", "--force", "--volumes"), ("volume", "rm", "--force")):
            subprocess.run([self.engine, *command, self.name], capture_output=True, timeout=COMMAND_S, check=False)

    def _address(self) -> tuple[str, ...]:
        host, _, port = run(self.engine, "port", self.name, "1883").split()[-1].rpartition(":")
        return "-h", host, "-p", port

    def _wait_until_ready(self) -> None:
        """Follow the log until it has one more line `ready` than the start before left in it."""
        self.starts += 1
        command = [self.engine, "logs", "--follow", self.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as log:
            assert log.stdout is not None
            seen = sum(1 for _ in _until(log.stdout, self.starts))
            log.kill()
        assert seen, f"{self.name} is not ready; it said:\n{self.log()}"


def _until(lines: Iterator[str], starts: int) -> Iterator[str]:
    """The `ready` line of the last start, or nothing if the log ends before."""
    for line in lines:
        starts -= line.startswith("ready ")
        if not starts:
            yield line
            return


@contextmanager
def container(engine: str) -> Iterator[Container]:
    it = Container(engine, f"penstock-trial-{secrets.token_hex(4)}")
    try:
        yield it
    finally:
        it.remove()


def try_password(engine: str, image: str) -> None:
    """The first start makes a password; it, what was published and the refusal of others survive SIGKILL."""
    with container(engine) as it:
        it.first_start(image)
        (password,) = re.findall(r"the user name penstock and the password (\S+)", it.log())
        shown = ("-u", "penstock", "-P", password)
        it.publish("-r", *shown)
        it.publish(code=REFUSED)
        it.publish("-u", "penstock", "-P", "wrong", code=WRONG)
        assert it.inside("id", "-u") == USER_ID
        it.check_health()
        it.kill()
        it.start()
        assert it.log().count(password) == 1, it.log()
        assert it.retained(*shown) == "21.5"
        it.publish(code=REFUSED)
        it.check_health()


def try_anonymous(engine: str, image: str) -> None:
    """PENSTOCK_ALLOW_ANONYMOUS=true lets everybody in, and makes no password."""
    with container(engine) as it:
        it.first_start(image, *ANONYMOUS)
        assert "first start" not in it.log(), it.log()
        it.publish("-r")
        assert it.retained() == "21.5"


def try_hardened(engine: str, image: str) -> None:
    """As the compose file and the chart run it: no capabilities, nothing to write to but the volume."""
    with container(engine) as it:
        it.first_start(image, "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", *ANONYMOUS)
        it.publish("-r")
        it.kill()
        it.start()
        assert it.retained() == "21.5"


def _works(engine: str) -> bool:
    """Docker's command may be there without its server."""
    return (
        bool(shutil.which(engine)) and not subprocess.run([engine, "info"], capture_output=True, check=False).returncode
    )


def main(image: str) -> None:
    engine = next((it for it in ("docker", "podman") if _works(it)), None)
    if engine is None:
        sys.exit("missing here: docker or podman; the image was not tried")
    for trial in (try_password, try_anonymous, try_hardened):
        trial(engine, image)
        print(f"{image}: {trial.__name__.removeprefix('try_')} works", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
