"""The README's commands, word by word, in a machine of their own: a network and a process namespace."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SOCKET = "unix:penstock-data/console.sock"
ISOLATED = [
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--mount-proc",
    *([] if os.geteuid() == 0 else ["--map-root-user"]),
]


def block(marker: str, language: str = "sh", text: str = README) -> str:
    """The block that follows a marker, in the README or another document."""
    found = re.search(rf"{re.escape(marker)}.*?```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"no block after '{marker}'"
    return found[1]


def run(script: str, folder: Path) -> str:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*ISOLATED, "bash", "-e", "-c", f"ip link set lo up\n{script}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    """In the order of the page, in one folder: what a block starts is still running in the next one. A server of the
    same user that the reader did not start is not touched."""
    assert shutil.which("penstock", path=str(Path(sys.executable).parent)), "run `make test`, which installs penstock"
    (tmp_path / "program.py").write_text(block("<!-- client", "python"))
    others = started("penstock serve --no-console --data others --listen mqtt://127.0.0.1:1884", "others.log")
    serve = started("penstock serve", "serve.log")
    blocks = [block("<!-- try it"), block("<!-- kill it"), "python program.py\n"]
    pid = "$(cut -d' ' -f2 others/LOCK)"
    printed = run(f"{others}{serve}{'echo ---; '.join(blocks)}kill -0 {pid} && echo the other one runs", tmp_path)
    tried, killed, program = (part.splitlines() for part in printed.split("---\n"))
    assert tried == ["21.5", "22.0"]
    assert [line for line in killed if line in ("21.5", "22.0")] == ["21.5", "22.0"]
    values = ("21.5", "21.6", "21.7")
    billed, read = (
        [f"billed {value}" for value in values],
        [f"line/7/temp {value}" for value in ("21.5", "22.0", *values)],
    )
    assert program == ["C", "True", *billed, *read, "the other one runs"]


def test_the_client_of_a_store_that_is_a_process_of_its_own(tmp_path: Path) -> None:
    """As the page says it for other machines: two commands, and the program with another address."""
    program = block("<!-- client", "python")
    assert program.count(SOCKET) == 1
    (tmp_path / "program.py").write_text(program.replace(SOCKET, "penstock://localhost:7700"))
    commands = re.findall(r"`(penstock store|penstock gateway --store \S+)`", README)
    assert len(commands) == 2
    printed = run(
        f"{started(commands[0], 'store.log')}{started(commands[1], 'gateway.log')}python program.py", tmp_path
    )
    assert printed.splitlines()[:2] == ["C", "True"]


def started(command: str, log: str) -> str:
    """A line of a script: start it in the background, and wait until it is ready."""
    return f"{command} > {log} 2>&1 &\nuntil grep -q ^ready {log}; do sleep 0.05; done\n"


def test_the_two_set_up_commands_are_the_ones_that_ci_runs() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "```sh\nmake serve\n```" in README
    assert "\nmake serve " in ci
    assert "```sh\nmake test\n```" in README
    assert "\nmake test\n" in ci
